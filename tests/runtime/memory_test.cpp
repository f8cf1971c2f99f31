// Memory as predicted and as it is: every class that the dry run prints, in real runs.
#include "sluice/run/memory.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "sluice/base/names.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/plan/plan_run.h"
#include "sluice/plan/run_memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/runtime/out_of_memory.h"
#include "sluice/runtime/trainer.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice {
namespace {

constexpr std::int64_t kLength = 16, kSequences = 2;

struct Case {
  std::string schedule;
  int devices = 4;
  int slices = 1;
  double memory_cap = 0;
  int microbatches = 8;
};

Schedule lowered_schedule(const Case& c) {
  GeneratorOptions options;
  options.devices = c.devices;
  options.microbatches = c.microbatches;
  options.slices = c.slices;
  if (c.memory_cap > 0) options.memory_cap = c.memory_cap;
  Validation validation = validate(generate_schedule(c.schedule, options));
  EXPECT_TRUE(validation.valid());
  return std::move(validation.lowered);
}

// Microbatches of two sequences, two layers in each stage.
RunPlan plan_of(const Case& c, ModelFamily family) {
  Schedule schedule = lowered_schedule(c);
  const bool llama = family == ModelFamily::llama;
  ModelShape shape;
  shape.family = family;
  shape.layers = 2 * schedule.num_stages();
  shape.dim = 16;
  shape.heads = 2;
  shape.kv_heads = llama ? 1 : 2;
  shape.ffn_dim = 32;
  shape.vocab_size = 64;
  shape.positions = llama ? 0 : kLength;
  return test::plan_for(shape, std::move(schedule), kLength, kSequences * c.microbatches);
}

// What a thread allocates and does not free.
struct Allocated : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    bytes += size;
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t bytes = 0;
};

// Runs `body` with a trainer on every rank.
void on_ranks(const RunPlan& plan, const std::function<void(int rank, Trainer&)>& body) {
  std::vector<std::int32_t> tokens;
  for (int n = 0; n < 1000; ++n)
    tokens.push_back(n * n % 64);
  const Dataset data(memory_source(tokens, {0, 1000}),
                     {.sequence_length = kLength, .vocab_size = 64});
  run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, data, world);
    body(world.rank(), trainer);
  });
}

// A step: the ledger's peak is the prediction on every rank, and buffers keep below their bound.
// Returns the largest ledger peak.
std::int64_t expect_predicted(const RunPlan& plan) {
  const auto ranks = static_cast<std::size_t>(plan.mesh.size());
  std::vector<std::int64_t> stash(ranks), buffers(ranks);
  on_ranks(plan, [&](int rank, Trainer& trainer) {
    const ExecutedStep executed = trainer.step(1).executed;
    stash[static_cast<std::size_t>(rank)] = executed.peak_stash_bytes;
    buffers[static_cast<std::size_t>(rank)] = executed.peak_buffer_bytes;
  });
  const Simulation predicted = simulate(plan.schedule, byte_costs(plan));
  const std::vector<std::int64_t> most = buffer_bytes(plan);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(stash[rank], static_cast<std::int64_t>(predicted.devices[rank].peak_bytes))
        << "rank " << rank;
    EXPECT_LE(buffers[rank], most[rank]) << "rank " << rank;
    if (most[rank] > 0) {
      EXPECT_GT(buffers[rank], 0) << "rank " << rank;
    }
  }
  return *std::max_element(stash.begin(), stash.end());
}

TEST(RunMemory, IsThePredictionForEveryScheduleSliceAndLevel) {
  int runs = 0;
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    for (const int slices : {1, 4}) {
      if (slices > 1 && !generator->knobs.slices) continue;
      const Case c{.schedule = std::string(generator->name),
                   .slices = slices,
                   .memory_cap = generator->knobs.memory_cap ? 5. : 0};
      for (const RecomputeLevel level :
           {RecomputeLevel::none, RecomputeLevel::elementwise, RecomputeLevel::mlp,
            RecomputeLevel::all_but_attention, RecomputeLevel::full}) {
        SCOPED_TRACE(testing::Message()
                     << generator->name << ", " << slices << " slices, level " << name_of(level));
        constexpr ModelFamily kFamilies[] = {ModelFamily::gpt2, ModelFamily::llama,
                                             ModelFamily::bert};
        RunPlan plan = plan_of(c, kFamilies[runs % (slices > 1 ? 2 : 3)]);
        // The ends alone, now and then.
        if (runs % 7 == 0) {
          plan.layers_per_stage.front() = plan.layers_per_stage.back() = 0;
          plan.layers_per_stage[1] += 4;
        }
        plan.config.recompute.level = level;
        expect_predicted(plan);
        ++runs;
      }
    }
  }
  EXPECT_GE(runs, 140);
}

// Shares of 1F1B's peak by the ledger. Embedding and head are counted: with a dim of 16 and four
// layers on a device the head's stash is a larger part than in a model of size.
TEST(RunMemory, EightRanksKeepToTheirShareOf1F1B) {
  const auto peak = [](Case c) {
    c.devices = 8;
    c.microbatches = 16;
    RunPlan plan = plan_of(c, ModelFamily::gpt2);
    plan.shape.layers = 32;
    plan.layers_per_stage = even_layers(32, plan.schedule.num_stages());
    return static_cast<double>(expect_predicted(plan));
  };
  const double whole = peak({"1f1b"});
  for (const auto& [c, most] : {std::pair{Case{"v-half"}, 0.625},
                                {Case{"v-min"}, 0.5},
                                {Case{.schedule = "adaptive-v", .memory_cap = 9}, 0.5625},
                                {Case{.schedule = "seq1f1b", .slices = 4}, 0.4},
                                {Case{.schedule = "zb-v", .slices = 4}, 0.4},
                                {Case{.schedule = "zb-v", .slices = 8}, 0.3}}) {
    SCOPED_TRACE(testing::Message() << c.schedule << ", " << c.slices << " slices");
    EXPECT_LE(peak(c) / whole, most + 0.01);
  }
}

// A cap in MiB leaves some bytes for stashes and buffers; what a run then holds of them stays
// within those on every device, whichever order was found.
TEST(RunMemory, ACapInMebibytesIsKeptByTheLedger) {
  Config config;
  config.model.layers = 16;
  config.model.dim = 16;
  config.model.heads = 2;
  config.model.vocab_size = 64;
  config.training.sequence_length = kLength;
  config.training.global_batch_size = 16;
  config.parallelism.pipeline_parallel_degree = 4;
  config.parallelism.num_microbatches = 8;
  config.comm.backend = Backend::threads;
  const auto plan_under = [&](double mib) {
    config.parallelism.device_memory_mib = {mib};
    return plan_run(config).plan;
  };
  const auto largest = [](const RunPlan& plan) {
    std::int64_t most = 0;
    for (const RankMemory& rank : memory_by_rank(plan))
      most = std::max(most, rank.total());
    return static_cast<double>(most) / (1 << 20);
  };
  std::set<std::int64_t> peaks;
  for (const char* schedule : {"zb", "adaptive-v"})
    for (const int slices : {1, 2}) {
      if (slices > 1 && std::string_view(schedule) == "zb") continue;
      config.parallelism.pipeline_parallel_schedule = schedule;
      config.parallelism.slices = slices;
      const double free = largest(plan_under(1e6));
      for (const double share : {1., 0.9, 0.8}) {
        SCOPED_TRACE(testing::Message()
                     << schedule << ", " << slices << " slices, cap of " << share * free << " MiB");
        const RunPlan plan = plan_under(share * free);
        const std::vector<RankMemory> predicted = memory_by_rank(plan);
        const auto room = [&](int rank) {
          const RankMemory& memory = predicted[static_cast<std::size_t>(rank)];
          return static_cast<std::int64_t>(share * free * (1 << 20)) -
                 (memory.total() - memory.stash - memory.buffers);
        };
        std::array<std::int64_t, 4> stash{};
        on_ranks(plan, [&](int rank, Trainer& trainer) {
          for (int step = 1; step <= 2; ++step) {
            const ExecutedStep executed = trainer.step(step).executed;
            EXPECT_LE(executed.peak_stash_bytes + executed.peak_buffer_bytes, room(rank));
            stash[static_cast<std::size_t>(rank)] = executed.peak_stash_bytes;
          }
        });
        peaks.insert(*std::max_element(stash.begin(), stash.end()));
      }
    }
  EXPECT_GE(peaks.size(), 7) << "the caps were hardly felt";
}

// The allocator of the machine has no class of its own for it.
TEST(RunMemory, AFullMachineIsToldFromOtherErrors) {
  const auto fails = [](const auto& make) {
    try {
      make();
    } catch (const c10::Error& error) {
      return is_out_of_memory(error);
    }
    ADD_FAILURE() << "nothing was thrown";
    return false;
  };
  EXPECT_TRUE(fails([] { at::empty({std::int64_t{1} << 58}); }));
  EXPECT_FALSE(fails([] { at::empty({2}).add_(at::empty({3})); }));
}

// What weights, gradients and states are made of.
struct Made {
  NumberType weights = NumberType::float32;
  NumberType gradients = NumberType::float32;
  NumberType states = NumberType::float32;
  bool masters = true;
};
constexpr NumberType kNarrow = NumberType::bfloat16;
constexpr Made kMade[] = {{},
                          {.states = kNarrow, .masters = false},
                          {.weights = kNarrow},
                          {.weights = kNarrow, .gradients = kNarrow},
                          {.weights = kNarrow, .masters = false},
                          {.weights = kNarrow, .states = kNarrow},
                          {kNarrow, kNarrow, kNarrow, false}};

TEST(RunMemory, WeightsGradientsAndStatesAreThePredicted) {
  for (const Case& c : {Case{"1f1b"}, Case{"v-half"}, Case{"dualpipe"}, Case{"1f1b", 1}})
    for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert})
      for (const Made& made : kMade)
        for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
          RunPlan plan = plan_of(c, family);
          plan.config.training.dtype = made.weights;
          plan.config.training.gradient_dtype = made.gradients;
          plan.config.optimizer.state_dtype = made.states;
          plan.config.optimizer.master_weights = made.masters;
          plan.config.optimizer.name = kind;
          plan.shape.tied_embeddings = family != ModelFamily::llama;
          on_ranks(plan, [&](int rank, Trainer& trainer) {
            const std::vector<int> stages = plan.stages_of(rank);
            std::vector<ParameterShape> wanted;
            for (const int stage : stages)
              for (ParameterShape& parameter : stage_parameters(plan.shape, plan.layers_of(stage)))
                wanted.push_back(std::move(parameter));
            const std::vector<Parameter*> held = trainer.parameters();
            ASSERT_EQ(held.size(), wanted.size());
            WeightBytes bytes;
            for (std::size_t n = 0; n < held.size(); ++n) {
              EXPECT_EQ(held[n]->name, wanted[n].name);
              EXPECT_EQ(held[n]->value.sizes().vec(), wanted[n].shape);
              bytes.weights += static_cast<std::int64_t>(held[n]->value.nbytes());
              bytes.gradients += static_cast<std::int64_t>(held[n]->gradient.nbytes());
            }
            for (const Optimizer::State& state : trainer.optimizer().states())
              bytes.optimizer += static_cast<std::int64_t>(state.tensor.nbytes());
            const auto watch = std::make_shared<Allocated>();
            {
              const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
              trainer.optimizer().keep();
            }
            bytes.kept = watch->bytes;
            const WeightBytes predicted = weight_bytes(plan, rank);
            EXPECT_EQ(bytes.weights, predicted.weights);
            EXPECT_EQ(bytes.gradients, predicted.gradients);
            EXPECT_EQ(bytes.optimizer, predicted.optimizer);
            EXPECT_EQ(bytes.kept, predicted.kept);
          });
        }
}

}  // namespace
}  // namespace sluice
