// Gradients on a GPU against those of the CPU in fp32, for all families: whole and in slices,
// packed documents, every recomputation level, I and W apart and together.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/eager.h"
#include "sluice/cuda/device.h"
#include "sluice/model/stage.h"
#include "support/gradients.h"
#include "support/plans.h"

namespace sluice {
namespace {

struct Model {
  std::string name;
  ModelShape shape;
  std::int64_t length = 0;
};

ModelShape shape_of(ModelFamily family, std::int64_t dim, std::int64_t heads, std::int64_t kv_heads,
                    std::int64_t ffn, std::int64_t words, std::int64_t length) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 3;
  shape.dim = dim;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.ffn_dim = ffn;
  shape.vocab_size = words;
  shape.positions = family == ModelFamily::llama ? 0 : length;
  return shape;
}

std::vector<Model> models() {
  using enum ModelFamily;
  return {{"llama", shape_of(llama, 256, 4, 4, 704, 1000, 512), 512},
          {"llama, grouped heads of 128", shape_of(llama, 512, 4, 2, 1376, 1024, 256), 256},
          {"gpt2", shape_of(gpt2, 256, 4, 4, 1024, 1001, 512), 512},
          {"bert", shape_of(bert, 256, 4, 4, 1024, 1000, 384), 384},
          {"llama, odd", shape_of(llama, 24, 4, 2, 44, 37, 48), 48},
          {"gpt2, odd", shape_of(gpt2, 24, 4, 4, 41, 37, 50), 50}};
}

Microbatch random_microbatch(const ModelShape& shape, std::int64_t sequences, std::int64_t length,
                             std::uint64_t seed, bool packed) {
  Microbatch batch;
  at::Tensor drawn = at::empty({sequences, length + 1}, at::kFloat);
  initialise_normal(drawn, seed, "tokens", 1000);
  const at::Tensor tokens = drawn.abs().to(at::kLong).remainder(shape.vocab_size);
  batch.tokens = tokens.slice(1, 0, length).contiguous();
  batch.targets = tokens.slice(1, 1, length + 1).clone();
  batch.targets.select(1, 3).fill_(-1);
  if (packed)
    for (std::int64_t s = 0; s < sequences; ++s)
      batch.documents.starts.push_back({0, length / 3 + s, length / 2, length - 5});
  return batch;
}

struct Way {
  SliceBounds bounds;
  RecomputeLevel level = RecomputeLevel::none;
  bool fused = false;
  bool on_gpu = true;
  NumberType dtype = NumberType::bfloat16;
  std::int64_t long_document = kLongDocument;

  at::Device device() const { return on_gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU); }
};

// Whole sequences on the CPU in fp32.
Way reference(std::int64_t length) {
  return {.bounds = {0, length}, .on_gpu = false, .dtype = NumberType::float32};
}

struct Outcome {
  double loss = 0;
  test::Gradients gradients;
};

// One step of two stages by hand. `weights`, where given, are what the parameters start as.
Outcome run_step(const ModelShape& shape, std::vector<Microbatch> batches, double scale,
                 const Way& way, const test::Gradients& weights) {
  RunPlan plan = test::plan_of_stages(shape, {1, shape.layers - 1}, way.bounds,
                                      batches.front().tokens.size(0));
  plan.config.recompute.level = way.level;
  plan.config.training.dtype = way.dtype;
  if (way.on_gpu) plan.config.cluster.device = DeviceKind::cuda;
  // The head's weight gradients both ways: in F, and in W as deferred validation needs it.
  plan.config.parallelism.deferred_validation = !way.fused;
  EXPECT_EQ(plan.head_in_forward(), way.on_gpu && way.fused);
  std::vector<std::unique_ptr<Stage>> stages;
  for (const int number : {0, 1}) {
    stages.push_back(std::make_unique<Stage>(
        plan, number, Machine{.device = way.device(), .long_document = way.long_document}));
    stages.back()->begin_step(scale);
    for (Parameter* parameter : stages.back()->parameters())
      if (!weights.empty()) parameter->value.copy_(weights.at(parameter->name));
  }
  for (Microbatch& batch : batches) {
    batch.bounds = way.bounds;
    for (at::Tensor* tensor : {&batch.tokens, &batch.targets})
      *tensor = tensor->to(way.device());
  }
  const int slices = static_cast<int>(way.bounds.size()) - 1;
  const int count = static_cast<int>(batches.size());
  std::map<std::pair<int, int>, at::Tensor> turned;  // by the loss, of each microbatch and slice
  for (int m = 0; m < count; ++m)
    for (int c = 0; c < slices; ++c) {
      at::Tensor& x = turned[{m, c}];
      for (const auto& stage : stages)
        x = stage->forward(m, c, batches[static_cast<std::size_t>(m)], x);
    }
  for (int m = 0; m < count; ++m)
    for (int c = slices - 1; c >= 0; --c) {
      at::Tensor gradient = turned.at({m, c});
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
        gradient =
            way.fused ? (*stage)->backward(m, c, gradient) : (*stage)->input_grad(m, c, gradient);
      for (const auto& stage : stages)
        if (!way.fused) stage->weight_grad(m, c);
    }
  Outcome outcome;
  for (const auto& stage : stages) {
    outcome.loss += stage->loss();
    EXPECT_EQ(stage->stash_bytes(), 0);
    for (const Parameter* parameter : stage->parameters())
      outcome.gradients[parameter->name] = parameter->gradient.to(at::kCPU, at::kDouble);
  }
  return outcome;
}

// The weights of the CPU's fp32 model, rounded to `dtype`.
test::Gradients rounded_weights(const ModelShape& shape, at::ScalarType dtype) {
  RunPlan plan = test::plan_of_stages(shape, {shape.layers}, {0, 1});
  plan.config.debug.seed = 5;
  Stage stage(plan, 0);
  test::Gradients weights;
  for (const Parameter* parameter : stage.parameters())
    weights[parameter->name] = parameter->value.to(dtype).to(at::kFloat);
  return weights;
}

struct Errors {
  double all = 0;    // of all parameters together
  double worst = 0;  // of one
  std::string worst_name;
};

Errors errors(const test::Gradients& actual, const test::Gradients& expected) {
  double difference = 0, total = 0;
  Errors out;
  for (const auto& [name, wanted] : expected) {
    const double d = (actual.at(name).to(at::kCPU, at::kDouble) - wanted).norm().item<double>();
    difference += d * d;
    total += wanted.square().sum().item<double>();
    const double share = d / test::gradient_scale(expected, name);
    if (share > out.worst) {
      out.worst = share;
      out.worst_name = name;
    }
  }
  out.all = std::sqrt(difference / total);
  return out;
}

std::vector<SliceBounds> cuts(const Model& model) {
  const std::int64_t n = model.length;
  if (model.shape.encoder()) return {{0, n}};
  return {{0, n}, {0, n / 2, n}, {0, n / 3, n / 2 + 1, n}};
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string cause = cuda::why_not(); !cause.empty()) GTEST_SKIP() << cause;
  }
};

// What a GPU draws for a part of a weight is what the CPU draws, but for the last bits of sines.
TEST_F(OnGpu, WeightsStartAsOnTheCpu) {
  for (const Shard& shard : {Shard{.whole = {300, 70}, .range = {100, 200}},
                             Shard{.whole = {300, 70}, .dim = 1, .range = {11, 46}},
                             Shard{.whole = {1000}, .range = {0, 1000}}}) {
    at::Tensor here = at::empty(shard.shape(), at::kFloat);
    at::Tensor there = at::empty(shard.shape(), at::TensorOptions(at::kCUDA).dtype(at::kFloat));
    initialise_normal(here, shard, 9, "some.weight", 0.02);
    initialise_normal(there, shard, 9, "some.weight", 0.02);
    EXPECT_LE((here - there.cpu()).abs().max().item<double>(), 1e-8);
  }
}

TEST_F(OnGpu, GradientsInFp32EqualTheCpu) {
  for (const Model& model : models())
    for (const bool packed : {false, true}) {
      const std::vector<Microbatch> batches = {
          random_microbatch(model.shape, 2, model.length, 1, packed),
          random_microbatch(model.shape, 2, model.length, 2, packed)};
      const double scale = 1.0 / static_cast<double>(4 * model.length);
      const auto weights = rounded_weights(model.shape, at::kFloat);
      const Outcome cpu = run_step(model.shape, batches, scale, reference(model.length), weights);
      for (const SliceBounds& bounds : cuts(model)) {
        const Outcome gpu = run_step(model.shape, batches, scale,
                                     {.bounds = bounds, .dtype = NumberType::float32}, weights);
        const Errors error = errors(gpu.gradients, cpu.gradients);
        EXPECT_LE(error.worst, 1e-4) << model.name << ", " << bounds.size() - 1
                                     << " slices, packed " << packed << ": " << error.worst_name;
        EXPECT_NEAR(gpu.loss, cpu.loss, 1e-5 * cpu.loss) << model.name;
      }
    }
}

TEST_F(OnGpu, GradientsInBf16AreAsCloseAsEagers) {
  for (const Model& model : models())
    for (const bool packed : {false, true}) {
      const std::vector<Microbatch> batches = {
          random_microbatch(model.shape, 4, model.length, 3, packed)};
      const double scale = 1.0 / static_cast<double>(4 * model.length);
      const auto weights = rounded_weights(model.shape, at::kBFloat16);
      const Outcome cpu = run_step(model.shape, batches, scale, reference(model.length), weights);
      Errors eager;
      if (!packed) {
        test::Gradients there;
        for (const auto& [name, value] : weights)
          there[name] = value.to(at::Device(at::kCUDA, 0), at::kBFloat16);
        Microbatch batch = batches[0];
        batch.tokens = batch.tokens.to(at::kCUDA);
        batch.targets = batch.targets.to(at::kCUDA);
        eager = errors(test::eager_gradients(model.shape, there, batch, scale), cpu.gradients);
      }
      for (const SliceBounds& bounds : cuts(model))
        for (const bool fused : {false, true}) {
          const Outcome gpu =
              run_step(model.shape, batches, scale, {.bounds = bounds, .fused = fused}, weights);
          const Errors error = errors(gpu.gradients, cpu.gradients);
          const std::string where = fmt::format("{}, {} slices{}{}", model.name, bounds.size() - 1,
                                                packed ? ", packed" : "", fused ? ", fused" : "");
          fmt::print("{:45s} all {:.2e} worst {:.2e} ({})", where, error.all, error.worst,
                     error.worst_name);
          if (!packed) {
            fmt::print("; eager all {:.2e} worst {:.2e}", eager.all, eager.worst);
            EXPECT_LE(error.all, 1.5 * eager.all) << where;
            EXPECT_LE(error.worst, 1.5 * eager.worst) << where << ": " << error.worst_name;
          }
          fmt::print("\n");
          EXPECT_LE(error.all, 1.5e-2) << where;
          EXPECT_LE(error.worst, 3e-2) << where << ": " << error.worst_name;
          EXPECT_NEAR(gpu.loss, cpu.loss, 1e-3 * cpu.loss) << where;
        }
    }
}

// Packed as above, but documents of a fifth of a sequence are long.
TEST_F(OnGpu, GradientsOfLongDocumentsEqualTheCpu) {
  for (const Model& model : models()) {
    const std::vector<Microbatch> batches = {
        random_microbatch(model.shape, 3, model.length, 3, true)};
    const double scale = 1.0 / static_cast<double>(3 * model.length);
    const auto weights = rounded_weights(model.shape, at::kBFloat16);
    const Outcome cpu = run_step(model.shape, batches, scale, reference(model.length), weights);
    for (const SliceBounds& bounds : cuts(model))
      for (const RecomputeLevel level :
           {RecomputeLevel::none, RecomputeLevel::all_but_attention, RecomputeLevel::full}) {
        const Outcome gpu = run_step(model.shape, batches, scale,
                                     {.bounds = bounds,
                                      .level = level,
                                      .fused = level != RecomputeLevel::none,
                                      .long_document = model.length / 5},
                                     weights);
        const Errors error = errors(gpu.gradients, cpu.gradients);
        const std::string where = fmt::format("{}, {} slices, level {}", model.name,
                                              bounds.size() - 1, static_cast<int>(level));
        fmt::print("{:45s} all {:.2e} worst {:.2e} ({})\n", where, error.all, error.worst,
                   error.worst_name);
        EXPECT_LE(error.all, 1.5e-2) << where;
        EXPECT_LE(error.worst, 3e-2) << where << ": " << error.worst_name;
        EXPECT_NEAR(gpu.loss, cpu.loss, 1e-3 * cpu.loss) << where;
      }
  }
}

TEST_F(OnGpu, RecomputationChangesLittle) {
  const Model model = models()[1];
  const std::vector<Microbatch> batches = {
      random_microbatch(model.shape, 2, model.length, 4, false)};
  const auto weights = rounded_weights(model.shape, at::kBFloat16);
  for (const SliceBounds& bounds : cuts(model))
    for (const bool fused : {false, true}) {
      const auto run = [&](RecomputeLevel level) {
        return run_step(model.shape, batches, 1e-2,
                        {.bounds = bounds, .level = level, .fused = fused}, weights);
      };
      const Outcome kept = run(RecomputeLevel::none);
      // The same calls on the same numbers; only what is added in no fixed order may differ.
      for (const RecomputeLevel level : {RecomputeLevel::elementwise, RecomputeLevel::mlp,
                                         RecomputeLevel::all_but_attention, RecomputeLevel::full})
        EXPECT_LE(errors(run(level).gradients, kept.gradients).worst, 2e-3)
            << static_cast<int>(level);
    }
}

// Long enough that the MLP is computed in chunks, the last one not whole.
TEST_F(OnGpu, AnMlpInChunksIsTheSame) {
  Model model{"long", shape_of(ModelFamily::llama, 64, 2, 2, 128, 64, 40000), 40000};
  const std::vector<Microbatch> batches = {
      random_microbatch(model.shape, 1, model.length, 4, false)};
  const auto weights = rounded_weights(model.shape, at::kBFloat16);
  const auto run = [&](RecomputeLevel level, bool fused) {
    return run_step(model.shape, batches, 1e-4,
                    {.bounds = {0, model.length}, .level = level, .fused = fused}, weights);
  };
  const Outcome whole = run(RecomputeLevel::none, true);
  for (const bool fused : {false, true}) {
    const Outcome chunks = run(RecomputeLevel::mlp, fused);
    EXPECT_LE(errors(chunks.gradients, whole.gradients).worst, 1e-2);
    EXPECT_NEAR(chunks.loss, whole.loss, 1e-6 * whole.loss);
  }
}

}  // namespace
}  // namespace sluice
