// Modules of one's own as layers: the same gradients as plain autograd, the same bits through every
// schedule, memory as it is held.
#include "sluice/model/autograd_layer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "model/reference.h"
#include "sluice/base/error.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/runtime/trainer.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "support/gradients.h"
#include "support/plans.h"

namespace sluice {
namespace {

constexpr std::int64_t kDim = 16, kLength = 16;

// Earlier tokens are mixed into later ones by a learned triangle; a gate decides how much passes.
class MixerImpl : public torch::nn::Module {
 public:
  MixerImpl()
      : in_(register_module("in", torch::nn::Linear(kDim, 2 * kDim))),
        out_(register_module("out", torch::nn::Linear(kDim, kDim))),
        mix_(register_parameter("mix", torch::empty({kLength, kLength}))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto halves = in_->forward(x).chunk(2, -1);
    return x + out_->forward(torch::silu(halves[0]) * torch::matmul(mix_.tril(), halves[1]));
  }

 private:
  torch::nn::Linear in_, out_;
  torch::Tensor mix_;
};

// Without bias and mixing; every token alone.
class GateImpl : public torch::nn::Module {
 public:
  GateImpl()
      : up_(register_module(
            "up", torch::nn::Linear(torch::nn::LinearOptions(kDim, 3 * kDim).bias(false)))),
        down_(register_module(
            "down", torch::nn::Linear(torch::nn::LinearOptions(3 * kDim, kDim).bias(false)))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return down_->forward(torch::silu(up_->forward(x)));
  }

 private:
  torch::nn::Linear up_, down_;
};

at::Tensor plain_mixer(const at::Tensor& x,
                       const std::function<at::Tensor(const std::string&)>& weight) {
  const at::Tensor both = at::mm(x, weight("in.weight").t()) + weight("in.bias");
  const at::Tensor gate = both.slice(1, 0, kDim), value = both.slice(1, kDim);
  const at::Tensor mixed = at::mm(weight("mix").tril(), value);
  return x + at::mm(gate * gate.sigmoid() * mixed, weight("out.weight").t()) + weight("out.bias");
}

OwnModule larger_start() {
  OwnModule own;
  own.initialise = [](at::Tensor& value, std::uint64_t seed, const std::string& name) {
    initialise_normal(value, seed, name, 0.2);
  };
  return own;
}

// Every other layer is a mixer, the rest are blocks.
std::unique_ptr<Layer> alternate(const LayerOptions& options) {
  return options.layer % 2 == 0
             ? wrap_module(options, std::make_shared<MixerImpl>(), larger_start())
             : make_block(options);
}

ModelShape small_shape(std::int64_t layers) {
  ModelShape shape;
  shape.layers = layers;
  shape.dim = kDim;
  shape.heads = shape.kv_heads = 2;
  shape.ffn_dim = 32;
  shape.vocab_size = 64;
  shape.positions = kLength;
  return shape;
}

std::shared_ptr<const TokenSource> tokens() {
  std::vector<std::int32_t> out;
  std::uint32_t state = 12345;
  for (int n = 0; n < 4000; ++n) {
    state = state * 1664525u + 1013904223u;
    out.push_back(static_cast<std::int32_t>((state >> 24) % 16) + (n % 4) * 16);
  }
  return memory_source(out, {0, 4000});
}

struct Case {
  std::string schedule = "1f1b";
  int devices = 1;
  int steps = 3;
  RecomputeLevel level = RecomputeLevel::none;
  NumberType dtype = NumberType::float32;
};

struct Trained {
  std::vector<double> losses;
  double evaluated = 0;
  std::map<std::string, at::Tensor> weights, gradients;  // gradients of the last step
};

Trained train(const Case& c) {
  GeneratorOptions generator;
  generator.devices = c.devices;
  generator.microbatches = 8;
  const Validation validation = validate(generate_schedule(c.schedule, generator));
  EXPECT_TRUE(validation.valid());
  const Dataset data(tokens(), {.sequence_length = kLength, .vocab_size = 64, .seed = 3});
  RunPlan plan = test::plan_for(small_shape(8), validation.lowered, kLength, 16);
  plan.config.recompute.level = c.level;
  plan.config.training.dtype = c.dtype;
  plan.config.training.steps = 10;
  plan.config.training.max_norm = 0.5;
  plan.config.optimizer.lr = 0.01;
  plan.config.debug.seed = 11;
  Trained trained;
  std::mutex mutex;
  run_threads(c.devices, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, data, world, {.make_layer = alternate});
    std::vector<double> losses;
    for (int n = 1; n <= c.steps; ++n)
      losses.push_back(trainer.step(n).loss);
    const double evaluated = trainer.evaluate(data, 16);
    const std::lock_guard lock(mutex);
    trained.losses = losses;
    trained.evaluated = evaluated;
    for (const Parameter* parameter : trainer.parameters()) {
      trained.weights[parameter->name] = parameter->value.clone();
      trained.gradients[parameter->name] = parameter->gradient.clone();
    }
  });
  return trained;
}

TEST(AutogradLayer, EveryScheduleGivesTheSameBits) {
  const Trained reference = train({});
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  EXPECT_TRUE(reference.weights.contains("layers.2.in.weight"));
  EXPECT_TRUE(reference.weights.contains("layers.3.attention.q.weight"));
  for (const Case& c : {Case{"1f1b", 2}, Case{"zb-v", 2}, Case{"v-half", 2}, Case{"v-half", 4},
                        Case{"1f1b", 2, 3, RecomputeLevel::full}}) {
    SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
    const Trained trained = train(c);
    EXPECT_EQ(trained.losses, reference.losses);
    EXPECT_EQ(trained.evaluated, reference.evaluated);
    ASSERT_EQ(trained.weights.size(), reference.weights.size());
    for (const auto& [name, weight] : reference.weights)
      EXPECT_TRUE(at::equal(weight, trained.weights.at(name))) << name;
  }
}

TEST(AutogradLayer, AStepEqualsPlainAutograd) {
  const Trained fresh = train({.steps = 0});
  const Trained ours = train({.schedule = "zb-v", .devices = 2, .steps = 1});
  const Dataset data(tokens(), {.sequence_length = kLength, .vocab_size = 64, .seed = 3});
  std::vector<Microbatch> batches;
  for (std::int64_t n = 0; n < 16; ++n) {
    const Sample sample = data.sample(n);
    const std::vector<std::int64_t> in(sample.tokens.begin(), sample.tokens.end());
    const std::vector<std::int64_t> out(sample.targets.begin(), sample.targets.end());
    batches.push_back({at::tensor(in).unsqueeze(0), at::tensor(out).unsqueeze(0), {}, {}});
  }
  const test::ReferenceResult reference = test::reference_step(
      small_shape(8), fresh.weights, batches, 1.0 / 256,
      {{0, plain_mixer}, {2, plain_mixer}, {4, plain_mixer}, {6, plain_mixer}});
  EXPECT_NEAR(ours.losses[0], reference.loss, 1e-6 * reference.loss);
  test::expect_close_gradients(ours.gradients, reference.gradients, 1e-5);
}

TEST(AutogradLayer, Bfloat16WithFp32GradientsLearns) {
  const Trained trained =
      train({.schedule = "zb-v", .devices = 2, .steps = 5, .dtype = NumberType::bfloat16});
  EXPECT_LT(trained.losses.back(), trained.losses.front());
  EXPECT_EQ(trained.weights.at("layers.0.mix").scalar_type(), at::kBFloat16);
  EXPECT_EQ(trained.gradients.at("layers.0.mix").scalar_type(), at::kFloat);
}

// A layer on its own.
struct Alone {
  explicit Alone(OwnModule own, SliceBounds bounds = {0, kLength})
      : layer(LayerOptions{.shape = small_shape(1), .layer = 5}, std::move(own)) {
    context.num_sequences = 2;
    context.bounds = std::move(bounds);
    state = layer.open(context.num_slices());
  }
  at::Tensor input() const {
    at::Tensor x = at::empty({context.num_tokens(), kDim});
    initialise_normal(x, 1, "x", 1);
    return x;
  }

  AutogradLayer layer;
  SliceContext context;
  std::unique_ptr<LayerState> state;
};

OwnModule of_function(std::function<at::Tensor(const at::Tensor&)> forward) {
  OwnModule own;
  own.forward = std::move(forward);
  return own;
}

TEST(AutogradLayer, CountsWhatTheGraphHolds) {
  const std::int64_t unit = 2 * kLength * kDim * 4;  // bytes of the input
  const auto after_f = [&](const LayerFactory& make) {
    const auto layer = make({.shape = small_shape(1)});
    Alone alone(of_function({}));
    const auto state = layer->open(1);
    const at::Tensor x = alone.input();
    const at::Tensor y = layer->forward(x, *state, alone.context);
    const std::int64_t bytes = state->bytes(0);
    layer->input_grad(at::ones_like(y), *state, alone.context);
    EXPECT_EQ(state->bytes(0), 0);
    return bytes;
  };
  const auto function = [](const std::function<at::Tensor(const at::Tensor&)>& forward) {
    return [forward](const LayerOptions& options) -> std::unique_ptr<Layer> {
      return std::make_unique<AutogradLayer>(options, of_function(forward));
    };
  };
  // The input; before and after the activation, three times as wide. Not the output, not weights.
  EXPECT_EQ(after_f([](const LayerOptions& options) {
              return wrap_module(options, std::make_shared<GateImpl>());
            }),
            7 * unit);
  EXPECT_EQ(after_f(function([](const at::Tensor& x) { return x + 1; })), unit);
  EXPECT_EQ(after_f(function([](const at::Tensor& x) { return x; })), unit);
  // Its backward needs the output.
  EXPECT_EQ(after_f(function([](const at::Tensor& x) { return x.sigmoid(); })), 2 * unit);
  EXPECT_EQ(after_f(function([](const at::Tensor& x) { return x.sigmoid().sigmoid() * 2; })),
            3 * unit);
}

TEST(AutogradLayer, ALayerOfSingleTokensMayBeSliced) {
  const auto gradients = [](const SliceBounds& bounds) {
    const auto module = std::make_shared<GateImpl>();
    const auto layer = wrap_module({.shape = small_shape(1)}, module, {.token_by_token = true});
    Alone whole(of_function({}));
    const at::Tensor x = whole.input().view({2, kLength, kDim});
    SliceContext context = whole.context;
    context.bounds = bounds;
    context.documents.starts = {{0, 3}, {0}};
    const auto state = layer->open(context.num_slices());
    std::vector<at::Tensor> outputs, input_gradients;
    for (context.slice = 0; context.slice < context.num_slices(); ++context.slice)
      outputs.push_back(layer->forward(
          x.slice(1, bounds[context.slice], bounds[context.slice + 1]).reshape({-1, kDim}), *state,
          context));
    for (context.slice = context.num_slices(); context.slice-- > 0;)
      layer->input_grad(at::ones_like(outputs[context.slice]), *state, context);
    return layer->parameters()[0].gradient;
  };
  const at::Tensor whole = gradients({0, kLength}), sliced = gradients({0, 7, kLength});
  EXPECT_LE((whole - sliced).norm().item<double>(), 1e-5 * whole.norm().item<double>());
}

std::string error_of(Alone& alone) {
  try {
    alone.layer.forward(alone.input(), *alone.state, alone.context);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(AutogradLayer, RefusesInOneClearLine) {
  const auto same = [](const at::Tensor& x) { return x * 2; };
  Alone sliced(of_function(same), {0, 8, kLength});
  EXPECT_EQ(error_of(sliced),
            "layers.5 is a module of your own and sequences are cut into 2 slices: it needs them "
            "whole; use 1 slice, or set token_by_token if no token looks at another");
  TensorGroup group;
  Alone shared(of_function(same));
  shared.context.group = &group;
  EXPECT_NE(error_of(shared).find("ranks share its sequences: it would see only a part of them"),
            std::string::npos);
  Alone packed(of_function(same));
  packed.context.documents.starts = {{0}, {0, 4}};
  EXPECT_EQ(error_of(packed),
            "layers.5 is a module of your own and sequences hold several documents: it cannot keep "
            "them apart; do not pack, or set token_by_token if no token looks at another");
  packed.context.documents.starts = {{0}, {0}};
  EXPECT_EQ(error_of(packed), "no error");
  Alone narrow(of_function([](const at::Tensor& x) { return x.slice(2, 0, 3); }));
  EXPECT_EQ(error_of(narrow),
            "layers.5: its module returns Float (2, 16, 3) for an input of Float (2, 16, 16): it "
            "must keep shape and type");
  Alone constant(of_function([](const at::Tensor& x) { return at::ones_like(x); }));
  EXPECT_EQ(error_of(constant), "layers.5: the output of its module does not depend on the input");
  Alone wrong(of_function([](const at::Tensor& x) { return at::mm(x, x); }));
  const std::string text = error_of(wrong);
  EXPECT_TRUE(text.starts_with("layers.5: its module failed in forward: ")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  OwnModule frozen = of_function(same);
  frozen.parameters = {{"table", at::ones({2})}};
  EXPECT_THROW(Alone{frozen}, UserError);
}

}  // namespace
}  // namespace sluice
