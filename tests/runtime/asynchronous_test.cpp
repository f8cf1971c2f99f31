// Steps that overlap: every bit is that of a serial emulator, whatever the timing.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/asynchronous_emulator.h"
#include "runtime/trained.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/plan/plan_run.h"
#include "sluice/plan/run_memory.h"
#include "sluice/run/memory.h"
#include "sluice/run/step_traffic.h"
#include "support/plans.h"

namespace sluice {
namespace {

struct Case {
  const char* schedule = "amdp";
  int devices = 4;
  int microbatches = 8;
  AmdpOrder order = AmdpOrder::automatic;
  UsedWeights weights = UsedWeights::automatic;
  BackwardKind backward = BackwardKind::split;
  int update_slot = 0;
  MeshShape mesh = {};
  RecomputeLevel level = RecomputeLevel::none;
  NumberType dtype = NumberType::float32;
  CopyStates states = CopyStates::owner;
  bool tied = true;
  bool flush = false;
  OptimizerKind optimizer = OptimizerKind::adamw;
};

constexpr int kSteps = 5, kOfSteps = 8;

Config config_of(const Case& c) {
  Config config = test::small_config({.schedule = c.schedule,
                                      .dim = 16,
                                      .sequence_length = 16,
                                      .global_batch_size = 2 * c.microbatches * c.mesh.data(),
                                      .devices = c.devices,
                                      .microbatches = c.microbatches});
  config.model.layers = c.devices;
  config.model.vocab_size = 64;
  config.model.tied_embeddings = c.tied;
  config.training.steps = kOfSteps;
  config.training.dtype = c.dtype;
  config.training.max_norm = 0.5;
  config.optimizer.lr = 0.01;
  config.optimizer.name = c.optimizer;
  config.lr_scheduler.warmup_steps = 2;
  config.recompute.level = c.level;
  config.asynchronous.order = c.order;
  config.asynchronous.weights = c.weights;
  config.asynchronous.backward = c.backward;
  config.asynchronous.update_slot = c.update_slot;
  config.asynchronous.states = c.states;
  config.asynchronous.flush = c.flush;
  config.parallelism.tensor_parallel_degree = c.mesh.tensor;
  config.parallelism.data_parallel_shard_degree = c.mesh.shard;
  config.parallelism.data_parallel_replicate_degree = c.mesh.replicate;
  return config;
}

std::string text(const Case& c) {
  return fmt::format("{} {} on {}, {} microbatches, {} {}, {} data, {} tensor, {}", c.schedule,
                     name_of(c.order), c.devices, c.microbatches, name_of(c.weights),
                     name_of(c.backward), c.mesh.data(), c.mesh.tensor, name_of(c.dtype));
}

Dataset data_of(const RunPlan&) {
  return Dataset(test::tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;  // of the first data and tensor rank
  WindowCounts counts;                        // of the last step, over all ranks
  std::vector<std::int64_t> peaks;            // by device
  std::vector<Traffic> traffic;               // by rank
  std::vector<WeightBytes> bytes;             // by device
};

Trained train(const RunPlan& plan, const Dataset& data, int steps,
              const LayerFactory& make_layer = make_block) {
  Trained trained;
  trained.peaks.resize(static_cast<std::size_t>(plan.mesh.pipeline));
  trained.traffic.resize(static_cast<std::size_t>(plan.mesh.size()));
  trained.bytes.resize(static_cast<std::size_t>(plan.mesh.pipeline));
  std::mutex mutex;
  run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, data, world, {.make_layer = make_layer});
    const MeshPlace place = place_of(world.rank(), plan.mesh);
    for (int n = 1; n <= steps; ++n) {
      const StepResult result = trainer.step(n);
      const std::lock_guard lock(mutex);
      std::int64_t& peak = trained.peaks[static_cast<std::size_t>(place.pipeline)];
      peak = std::max(peak, result.executed.peak_stash_bytes);
      if (world.rank() == 0) {
        trained.losses.push_back(result.loss);
        trained.norms.push_back(result.gradient_norm);
      }
      if (n < steps || !result.counts) continue;
      for (std::size_t k = 0; k < result.counts->by_mismatch.size(); ++k)
        trained.counts.by_mismatch[k] += result.counts->by_mismatch[k];
      trained.counts.gradients += result.counts->gradients;
      trained.counts.max_delay = std::max(trained.counts.max_delay, result.counts->max_delay);
    }
    trainer.take_in();
    const std::lock_guard lock(mutex);
    WeightBytes& bytes = trained.bytes[static_cast<std::size_t>(place.pipeline)];
    if (const OpenWindows* windows = trainer.windows()) {
      bytes.weights = windows->peak_weight_bytes();
      bytes.gradients = windows->gradient_bytes();
    }
    bytes.optimizer = 0;
    for (const Optimizer::State& state : trainer.optimizer().states())
      bytes.optimizer += static_cast<std::int64_t>(state.tensor.nbytes());
    trained.traffic[static_cast<std::size_t>(world.rank())] = trainer.traffic();
    if (place.data == 0 && place.tensor == 0)
      for (const Parameter* parameter : trainer.parameters()) {
        const auto [at, added] =
            trained.weights.try_emplace(parameter->name, parameter->value.clone());
        EXPECT_TRUE(at::equal(at->second, parameter->value)) << parameter->name;  // all copies
      }
  });
  return trained;
}

test::Emulated emulated(const RunPlan& plan, const Dataset& data, int steps) {
  test::Emulated first;
  std::mutex mutex;
  run_threads(plan.mesh.data() * plan.mesh.tensor, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    test::Emulated mine = test::emulate(plan, data, steps, world);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) first = std::move(mine);
  });
  return first;
}

void expect_same(const Trained& trained, const test::Emulated& emulated) {
  EXPECT_EQ(trained.losses, emulated.losses);
  EXPECT_EQ(trained.norms, emulated.norms);
  ASSERT_EQ(trained.weights.size(), emulated.weights.size());
  for (const auto& [name, weight] : trained.weights)
    EXPECT_TRUE(at::equal(weight, emulated.weights.at(name))) << name;
}

constexpr UsedWeights kStash = UsedWeights::stash;
constexpr BackwardKind kFused = BackwardKind::fused;

const Case kCases[] = {
    {"amdp", 4, 8, AmdpOrder::a},
    {"amdp", 4, 4, AmdpOrder::a, kStash},
    {"amdp", 4, 8, AmdpOrder::a, UsedWeights::newest, kFused, 3},
    {"amdp", 2, 2, AmdpOrder::r},
    {"amdp", 4, 4, AmdpOrder::r},
    {"amdp", 3, 4, AmdpOrder::r, kStash},
    {"amdp", 4, 8, AmdpOrder::t},
    {"amdp", 6, 8, AmdpOrder::rounded_a},
    {"amdp", 4, 8, AmdpOrder::frozen},
    {"async-1f1b", 4, 8},
    {"async-1f1b", 4, 2},
    {"async-1f1b", 4, 1, AmdpOrder::automatic, kStash},
    {"pipedream-2bw", 4, 4},
    {"xpipe", 4, 4},
    {"xpipe", 3, 5, AmdpOrder::automatic, UsedWeights::automatic, kFused},
    {"pipedream", 4, 1},
    {"pipedream", 3, 2, AmdpOrder::automatic, UsedWeights::newest, kFused},
};

TEST(Asynchronous, EveryBitIsThatOfTheSerialEmulator) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(text(c));
    const RunPlan plan = plan_run(config_of(c)).plan;
    const Dataset data = data_of(plan);
    expect_same(train(plan, data, kSteps), emulated(plan, data, kSteps));
  }
}

TEST(Asynchronous, DataAndTensorRanksRecomputationAndBfloat16Too) {
  Case plain{"amdp", 4, 8, AmdpOrder::a};
  std::vector<Case> cases;
  for (const MeshShape& mesh :
       {MeshShape{.shard = 2}, MeshShape{.replicate = 2}, MeshShape{.tensor = 2}})
    cases.push_back([&] {
      Case c = plain;
      c.mesh = mesh;
      return c;
    }());
  plain.level = RecomputeLevel::full;
  cases.push_back(plain);
  plain.weights = kStash;
  cases.push_back(plain);
  plain = {"amdp", 4, 8, AmdpOrder::r};
  plain.dtype = NumberType::bfloat16;
  cases.push_back(plain);
  plain.tied = false;
  plain.states = CopyStates::replicated;
  cases.push_back(plain);
  for (const Case& c : cases) {
    SCOPED_TRACE(text(c));
    const RunPlan plan = plan_run(config_of(c)).plan;
    const Dataset data = data_of(plan);
    expect_same(train(plan, data, kSteps), emulated(plan, data, kSteps));
  }
}

TEST(Asynchronous, MuonAndNAdamToo) {
  for (const OptimizerKind optimizer : {OptimizerKind::muon, OptimizerKind::nadam})
    for (Case c : {Case{"amdp", 4, 8, AmdpOrder::a}, Case{"async-1f1b", 2, 4}}) {
      c.optimizer = optimizer;
      for (const MeshShape& mesh : {MeshShape{}, MeshShape{.shard = 2}, MeshShape{.tensor = 2}}) {
        c.mesh = mesh;
        SCOPED_TRACE(text(c));
        const RunPlan plan = plan_run(config_of(c)).plan;
        const Dataset data = data_of(plan);
        expect_same(train(plan, data, kSteps), emulated(plan, data, kSteps));
      }
    }
}

// A layer whose ops take any time.
class Sleepy : public Layer {
 public:
  Sleepy(const LayerOptions& options, unsigned seed)
      : inner_(make_block(options)), random_(seed + static_cast<unsigned>(options.layer)) {}

  std::unique_ptr<LayerState> open(std::size_t num_slices) const override {
    return inner_->open(num_slices);
  }
  at::Tensor forward(const at::Tensor& x, LayerState& state, const SliceContext& c) override {
    doze();
    return inner_->forward(x, state, c);
  }
  at::Tensor input_grad(const at::Tensor& dy, LayerState& state, const SliceContext& c) override {
    doze();
    return inner_->input_grad(dy, state, c);
  }
  void weight_grad(LayerState& state, const SliceContext& c) override {
    doze();
    inner_->weight_grad(state, c);
  }
  at::Tensor evaluate(const at::Tensor& x, LayerState& state, const SliceContext& c) override {
    return inner_->evaluate(x, state, c);
  }
  std::vector<Parameter>& parameters() override { return inner_->parameters(); }

 private:
  void doze() {
    const auto span = std::uniform_int_distribution<int>(0, 3)(random_);
    std::this_thread::sleep_for(std::chrono::microseconds(span == 3 ? 2000 : 100 * span));
  }

  std::unique_ptr<Layer> inner_;
  std::mt19937 random_;
};

TEST(Asynchronous, SleepsInTheWorkersChangeNoBit) {
  for (const Case& c : {Case{"amdp", 4, 8, AmdpOrder::a}, Case{"amdp", 3, 2, AmdpOrder::r, kStash},
                        Case{"async-1f1b", 4, 2}}) {
    SCOPED_TRACE(text(c));
    const RunPlan plan = plan_run(config_of(c)).plan;
    const Dataset data = data_of(plan);
    const test::Emulated wanted = emulated(plan, data, 3);
    for (const unsigned seed : {1U, 2U})
      expect_same(train(plan, data, 3,
                        [seed](const LayerOptions& options) {
                          return std::make_unique<Sleepy>(options, seed);
                        }),
                  wanted);
  }
}

// Counted as the ops ran.
TEST(Asynchronous, MismatchAndDelayAreAtMostOneAndEveryGradientCountsOnce) {
  struct Wanted {
    Case c;
    int mismatched;  // microbatches of a window, at most
  };
  for (const auto& [c, mismatched] :
       {Wanted{{"amdp", 4, 8, AmdpOrder::a}, 4}, Wanted{{"amdp", 4, 8, AmdpOrder::t}, 4},
        Wanted{{"amdp", 4, 8, AmdpOrder::r}, 2}, Wanted{{"amdp", 6, 16, AmdpOrder::rounded_a}, 8},
        Wanted{{"amdp", 4, 8, AmdpOrder::a, kStash}, 0}}) {
    SCOPED_TRACE(text(c));
    const RunPlan plan = plan_run(config_of(c)).plan;
    const Dataset data = data_of(plan);
    const WindowCounts counts = train(plan, data, kSteps).counts;
    const std::int64_t pairs = std::int64_t{c.devices} * c.microbatches;
    EXPECT_EQ(counts.gradients, pairs);
    EXPECT_EQ(
        std::accumulate(counts.by_mismatch.begin(), counts.by_mismatch.end(), std::int64_t{0}),
        pairs);
    EXPECT_EQ(counts.by_mismatch[0] + counts.by_mismatch[1], pairs);
    if (mismatched == 0)
      EXPECT_EQ(counts.by_mismatch[1], 0);
    else
      EXPECT_GT(counts.by_mismatch[1], 0);
    EXPECT_LE(counts.by_mismatch[1], std::int64_t{c.devices} * mismatched);
    EXPECT_EQ(counts.max_delay, 1);
    // As the schedule says.
    const Staleness staleness = staleness_of(plan.schedule);
    EXPECT_LE(staleness.mismatched_microbatches, mismatched);
    if (mismatched > 0) {
      EXPECT_EQ(counts.by_mismatch[1], staleness.pairs_by_mismatch[1]);
    }
  }
}

TEST(Asynchronous, WeightsGradientsAndStatesTakeWhatTheDryRunSays) {
  for (const UsedWeights weights : {UsedWeights::newest, kStash})
    for (const Case& c :
         {Case{"amdp", 4, 8, AmdpOrder::a, weights}, Case{"amdp", 4, 8, AmdpOrder::r, weights},
          Case{"amdp", 4, 8, AmdpOrder::t, weights}, Case{"amdp", 8, 8, AmdpOrder::a, weights},
          Case{"async-1f1b", 4, 4, AmdpOrder::automatic, weights},
          Case{"pipedream", 4, 1, AmdpOrder::automatic, weights}, Case{"pipedream-2bw", 4, 4},
          Case{"xpipe", 4, 4}}) {
      SCOPED_TRACE(text(c));
      const RunPlan plan = plan_run(config_of(c)).plan;
      const Dataset data = data_of(plan);
      const Trained trained = train(plan, data, kSteps);
      const std::vector<RankMemory> predicted = memory_by_rank(plan);
      for (std::size_t d = 0; d < trained.bytes.size(); ++d) {
        EXPECT_EQ(trained.bytes[d].weights, predicted[d].weights) << "device " << d;
        EXPECT_EQ(trained.bytes[d].gradients, predicted[d].gradients) << "device " << d;
        EXPECT_EQ(trained.bytes[d].optimizer, predicted[d].optimizer) << "device " << d;
        EXPECT_EQ(trained.peaks[d], predicted[d].stash) << "device " << d;
      }
    }
}

TEST(Asynchronous, AStashIsNeverLargerThanPredictedAndTrafficIsAsPredicted) {
  for (const Case& c : {Case{"amdp", 4, 8, AmdpOrder::a}, Case{"amdp", 4, 8, AmdpOrder::r},
                        Case{"amdp", 4, 8, AmdpOrder::t}, Case{"async-1f1b", 4, 8}}) {
    SCOPED_TRACE(text(c));
    const RunPlan plan = plan_run(config_of(c)).plan;
    const Dataset data = data_of(plan);
    const Trained four = train(plan, data, 4), three = train(plan, data, 3);
    for (std::size_t d = 0; d < four.peaks.size(); ++d)
      EXPECT_EQ(four.peaks[d], plan.peak_stash_bytes[d]) << "device " << d;
    for (std::size_t d = 0; d < four.traffic.size(); ++d)
      for (const TrafficClass kind : {TrafficClass::boundary, TrafficClass::gradient,
                                      TrafficClass::parameter, TrafficClass::embedding})
        EXPECT_EQ(four.traffic[d].of(kind) - three.traffic[d].of(kind),
                  step_traffic(plan, static_cast<int>(d), 0).of(kind))
            << "device " << d << ", class " << static_cast<int>(kind);
  }
}

// Between steps, in the middle of those that have begun.
TEST(Asynchronous, EvaluationUsesTheNewestWeightsAndDisturbsNothing) {
  for (const Case& c : {Case{"amdp", 4, 8, AmdpOrder::a}, Case{"amdp", 4, 8, AmdpOrder::a, kStash},
                        Case{"async-1f1b", 4, 2}}) {
    SCOPED_TRACE(text(c));
    const RunPlan plan = plan_run(config_of(c)).plan;
    const Dataset data = data_of(plan);
    const Trained undisturbed = train(plan, data, 4);
    const auto evaluated = [&](const RunPlan& run, int steps,
                               const std::map<std::string, at::Tensor>* weights,
                               std::map<std::string, at::Tensor>* out) {
      double loss = 0;
      std::mutex mutex;
      run_threads(run.mesh.size(), {}, [&](Communicator& world) {
        at::set_num_threads(1);
        Trainer trainer(run, data, world);
        for (int n = 1; n <= std::min(steps, 3); ++n)
          trainer.step(n);
        if (weights)
          for (Parameter* parameter : trainer.parameters())
            parameter->value.copy_(weights->at(parameter->name));
        const double here = trainer.evaluate(data, 32);
        if (steps > 3) trainer.step(4);
        trainer.take_in();
        const std::lock_guard lock(mutex);
        if (world.rank() == 0) loss = here;
        for (const Parameter* parameter : trainer.parameters())
          if (out) out->try_emplace(parameter->name, parameter->value.clone());
      });
      return loss;
    };
    std::map<std::string, at::Tensor> after_four;
    const double loss = evaluated(plan, 4, nullptr, &after_four);
    for (const auto& [name, weight] : undisturbed.weights)
      EXPECT_TRUE(at::equal(weight, after_four.at(name))) << name;
    const std::map<std::string, at::Tensor> after_three = train(plan, data, 3).weights;
    const RunPlan serial = plan_run(config_of({"1f1b", 4, 8})).plan;
    EXPECT_NEAR(loss, evaluated(serial, 0, &after_three, nullptr), 1e-9);
  }
}

TEST(Asynchronous, FlushIsTheSynchronousStep) {
  const Dataset data(test::tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
  Case reference{"1f1b", 2, 8};
  const Trained serial = train(plan_run(config_of(reference)).plan, data, 3);
  for (const char* schedule : {"async-1f1b", "pipedream", "pipedream-2bw", "amdp"}) {
    SCOPED_TRACE(schedule);
    Case c{schedule, 2, 8};
    c.flush = true;
    if (c.schedule == std::string_view("amdp")) c.order = AmdpOrder::r;  // one pipe
    const Trained flushed = train(plan_run(config_of(c)).plan, data, 3);
    EXPECT_EQ(flushed.losses, serial.losses);
    for (const auto& [name, weight] : flushed.weights)
      EXPECT_TRUE(at::equal(weight, serial.weights.at(name))) << name;
  }
}

// With several pipes: gradients of each added up, then those of all, in their order. Two devices
// with as many halves of every batch are the same tree.
TEST(Asynchronous, FlushWithSeveralPipesIsAsDualpipeAndAgreesToRounding) {
  const Dataset data(test::tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
  const Trained serial = train(plan_run(config_of({"1f1b", 4, 8})).plan, data, 3);
  const Trained dual = train(plan_run(config_of({"dualpipe", 4, 8})).plan, data, 3);
  for (const AmdpOrder order : {AmdpOrder::a, AmdpOrder::r, AmdpOrder::t, AmdpOrder::frozen})
    for (const CopyStates states : {CopyStates::owner, CopyStates::replicated}) {
      SCOPED_TRACE(name_of(order));
      Case c{"amdp", 4, 8, order};
      c.flush = true;
      c.states = states;
      const Trained flushed = train(plan_run(config_of(c)).plan, data, 3);
      for (const auto& [name, weight] : flushed.weights)
        EXPECT_TRUE(at::equal(weight, dual.weights.at(name))) << name;
      for (std::size_t n = 0; n < serial.losses.size(); ++n)
        EXPECT_NEAR(flushed.losses[n], serial.losses[n], 1e-5);
    }
}

}  // namespace
}  // namespace sluice
