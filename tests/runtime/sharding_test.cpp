// Sharded parameters: whatever is gathered when, training is the same, and what moves and what is
// held is what the plan says.
#include "sluice/run/sharding.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "runtime/trained.h"
#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/model/autograd_layer.h"
#include "sluice/run/memory.h"
#include "sluice/run/step_traffic.h"
#include "support/plans.h"

namespace sluice {
namespace {

using test::Case;
using test::expect_close_gradients;
using test::expect_equal_bits;
using test::train;
using test::Trained;
using test::TrainOptions;

// Divisible by two tensor ranks; llama's heads of keys and values are shared by two of queries. 20
// rows do not divide among 64 blocks.
ModelShape small_shape(ModelFamily family, bool tied) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 4;
  shape.dim = 20;
  shape.heads = 2;
  shape.kv_heads = family == ModelFamily::llama ? 1 : 2;
  shape.ffn_dim = 36;
  shape.vocab_size = 64;
  shape.positions = family == ModelFamily::llama ? 0 : 16;
  shape.tied_embeddings = tied;
  return shape;
}

// Eight sequences a step, in microbatches of one.
TrainOptions run_on(const MeshShape& mesh, bool sharded, int steps = 3) {
  TrainOptions run;
  run.steps = steps;
  run.global_batch_size = 8;
  run.microbatches = 8 / mesh.data();
  run.mesh = mesh;
  run.sharded = sharded;
  run.optimizer = OptimizerKind::sgd;  // AdamW makes rounding errors of tiny gradients large
  return run;
}

void expect_close(const Trained& ours, const Trained& wanted) {
  ASSERT_EQ(ours.losses.size(), wanted.losses.size());
  for (std::size_t n = 0; n < wanted.losses.size(); ++n) {
    EXPECT_NEAR(ours.losses[n], wanted.losses[n], 1e-5);
    EXPECT_NEAR(ours.norms[n], wanted.norms[n], 1e-5);
  }
  expect_close_gradients(ours.first_gradients, wanted.first_gradients, 1e-5);
  ASSERT_EQ(ours.weights.size(), wanted.weights.size());
  for (const auto& [name, weight] : wanted.weights) {
    const double scale = std::max(weight.norm().item<double>(), 1e-3);
    EXPECT_LE((ours.weights.at(name) - weight).norm().item<double>(), 1e-5 * scale) << name;
  }
}

void expect_equal_states(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.states.size(), b.states.size());
  for (const auto& [name, state] : a.states)
    EXPECT_TRUE(at::equal(state, b.states.at(name))) << name;
}

void expect_predicted_traffic(const Trained& trained, const RunPlan& plan, int steps) {
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const MeshPlace place = place_of(rank, plan.mesh);
    const Traffic wanted = step_traffic(plan, place.pipeline, place.data);
    for (int c = 0; c < kNumTrafficClasses; ++c) {
      const auto kind = static_cast<TrafficClass>(c);
      EXPECT_EQ(trained.traffic[static_cast<std::size_t>(rank)].of(kind), steps * wanted.of(kind))
          << traffic_name(kind) << " of rank " << rank;
    }
  }
}

std::string text(const Case& c, const MeshShape& mesh) {
  return fmt::format("{} on {} in {} slices, replicate {}, shard {}, tensor {}", c.schedule,
                     c.devices, c.slices, mesh.replicate, mesh.shard, mesh.tensor);
}

class ShardedFamilies : public testing::TestWithParam<ModelFamily> {};

TEST_P(ShardedFamilies, GiveTheRunOfOneRankAndSendWhatIsPredicted) {
  const ModelShape shape = small_shape(GetParam(), GetParam() != ModelFamily::llama);
  const Trained serial = train({"1f1b", 1}, shape, run_on({}, false));
  struct Row {
    Case c;
    MeshShape mesh;
    bool sequence_norms = false;
    RecomputeLevel level = RecomputeLevel::none;
  };
  const std::vector<Row> rows = {
      {{"gpipe", 1}, {.shard = 2}},
      {{"1f1b", 1}, {.shard = 4}},
      {{"zb-h1", 2}, {.shard = 2}},
      {{"zb-v", 2}, {.shard = 4}, false, RecomputeLevel::full},
      {{"1f1b", 2}, {.replicate = 2, .shard = 2}},
      {{"zb-v", 1}, {.replicate = 2, .shard = 2}},
      {{"1f1b", 1}, {.shard = 2, .tensor = 2}, true},
      {{"zb-h1", 2}, {.shard = 2, .tensor = 2}, true, RecomputeLevel::full},
      {{"1f1b", 2}, {.shard = 2, .tensor = 2}},
      {{"1f1b", 1}, {.shard = 3}},
      {{"dualpipe", 2}, {.shard = 2}},
      {{"seq1f1b", 2, 2}, {.shard = 2}},
      {{"zb-v", 2, 2}, {.shard = 2}},
  };
  for (const Row& row : rows) {
    if (GetParam() == ModelFamily::bert && row.c.slices > 1) continue;
    SCOPED_TRACE(text(row.c, row.mesh));
    TrainOptions run = run_on(row.mesh, true);
    if (row.mesh.shard == 3) run.global_batch_size = 6, run.microbatches = 2;
    run.sequence_norms = row.sequence_norms;
    run.level = row.level;
    const Trained trained = train(row.c, shape, run);
    if (row.mesh.shard == 3) {
      TrainOptions alone = run_on({}, false);
      alone.global_batch_size = alone.microbatches = 6;
      expect_close(trained, train({"1f1b", 1}, shape, alone));
    } else {
      expect_close(trained, serial);
    }
    expect_predicted_traffic(trained, plan_of(row.c, shape, run), run.steps);
  }
}

INSTANTIATE_TEST_SUITE_P(Sharding, ShardedFamilies,
                         testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

// Then each rank adds one gradient to nothing, whether it sums before or after.
TEST(Sharding, WithOneMicrobatchAndOneReplicaTheBitsAreThoseOfStates) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert})
    for (const auto type : {NumberType::float32, NumberType::bfloat16})
      for (const bool narrow : {false, true}) {
        if (narrow && type == NumberType::float32) continue;
        for (const int shards : {2, 4}) {
          SCOPED_TRACE(testing::Message() << name_of(family) << " " << name_of(type) << " on "
                                          << shards << (narrow ? ", narrow" : ""));
          const ModelShape shape = small_shape(family, true);
          TrainOptions run = run_on({.shard = shards}, false);
          run.microbatches = 1;
          run.optimizer = OptimizerKind::adamw;
          run.narrow = narrow;
          const Trained states = train({"1f1b", 1, 1, 0, {}, type}, shape, run);
          run.sharded = true;
          for (const Case& c : {Case{"1f1b", 1, 1, 0, {}, type}, Case{"zb-v", 2, 1, 0, {}, type}}) {
            const Trained parameters = train(c, shape, run);
            expect_equal_bits(parameters, states);
            expect_equal_states(parameters, states);
          }
        }
      }
}

TEST(Sharding, ScheduleAndRecomputationChangeNoBit) {
  const ModelShape shape = small_shape(ModelFamily::gpt2, true);
  TrainOptions run = run_on({.shard = 2}, true);
  run.optimizer = OptimizerKind::adamw;
  const Trained reference = train({"1f1b", 1}, shape, run);
  for (const Case& c : {Case{"gpipe", 2}, Case{"zb-h1", 2}, Case{"zb-v", 2}, Case{"1f1b", 4}}) {
    SCOPED_TRACE(c.schedule);
    run.level = c.schedule == "zb-v" ? RecomputeLevel::full : RecomputeLevel::none;
    expect_equal_bits(train(c, shape, run), reference);
  }
}

TEST(Sharding, DeferredValidationChangesNoBitWhetherItClipsOrNot) {
  const ModelShape shape = small_shape(ModelFamily::llama, false);
  TrainOptions run = run_on({.shard = 2}, true, 4);
  for (const double max_norm : {0.0, 0.05}) {
    run.max_norm = max_norm;
    run.deferred = false;
    const Trained waits = train({"1f1b", 2}, shape, run);
    run.deferred = true;
    expect_equal_bits(train({"1f1b", 2}, shape, run), waits);
  }
}

// A run on threads with a body of its own.
void on_ranks(const RunPlan& plan, const Machine& machine,
              const std::function<void(Communicator&, Trainer&)>& body) {
  const Dataset data(test::tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
  run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, data, world, machine);
    body(world, trainer);
  });
}

TEST(Sharding, BetweenStepsARankHoldsItsOwnRowsOnly) {
  const ModelShape shape = small_shape(ModelFamily::gpt2, true);
  const RunPlan plan = plan_of({"1f1b", 2}, shape, run_on({.replicate = 2, .shard = 2}, true));
  on_ranks(plan, {}, [&](Communicator& world, Trainer& trainer) {
    const MeshPlace place = place_of(world.rank(), plan.mesh);
    std::int64_t own = 0;
    for (const int stage : plan.stages_of(place.pipeline))
      for (const ParameterShape& p : stage_parameters(plan.shape, plan.layers_of(stage))) {
        const BlockRows rows = share_rows(p.shape[0], place.data % 2, 2);
        own += (rows.end - rows.begin) * (p.count() / p.shape[0]);
      }
    for (int step = 0; step <= 2; ++step) {
      if (step > 0) trainer.step(step);
      for (const Parameter* parameter : trainer.parameters()) {
        EXPECT_EQ(parameter->value.storage().nbytes(), 0u) << parameter->name;
        EXPECT_EQ(parameter->gradient.storage().nbytes(), 0u) << parameter->name;
      }
      std::map<const void*, std::size_t> held;
      for (const Weight& weight : trainer.weights())
        for (const at::Tensor& tensor : {weight.value, weight.gradient})
          held[tensor.storage().unsafeGetStorageImpl()] = tensor.storage().nbytes();
      std::int64_t bytes = 0;
      for (const auto& [storage, size] : held)
        bytes += static_cast<std::int64_t>(size);
      EXPECT_EQ(bytes, 2 * own * 4);
    }
  });
}

// What a rank does, in order: messages posted and waited for, and layers computed.
using Diary = std::vector<std::string>;

class NotedTransfer final : public Transfer {
 public:
  NotedTransfer(Communicator& inner, Request request, std::string line, Diary& diary)
      : inner_(inner), request_(std::move(request)), line_(std::move(line)), diary_(diary) {}
  void wait() override {
    inner_.wait(request_);
    diary_.push_back(line_);
  }
  bool test() override { return inner_.test(request_); }

 private:
  Communicator& inner_;
  Request request_;
  std::string line_;
  Diary& diary_;
};

// Of two ranks: notes each exchange once, by its receive.
class NotedRanks final : public Communicator {
 public:
  NotedRanks(Communicator& inner, Diary& diary)
      : Communicator(inner.rank(), inner.world_ranks()), inner_(inner), diary_(diary) {}
  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    return inner_.post_send(lane, to, bytes, label);
  }
  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    diary_.push_back(fmt::format("begin {}", label));
    return Request(std::make_unique<NotedTransfer>(
        inner_, inner_.post_recv(lane, from, bytes, label), fmt::format("end {}", label), diary_));
  }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return inner_.group(ranks);
  }
  void fail(const std::exception_ptr& cause) override { inner_.fail(cause); }
  void throw_if_failed() override { inner_.throw_if_failed(); }

 private:
  Communicator& inner_;
  Diary& diary_;
};

class NotedLayer final : public Layer {
 public:
  NotedLayer(const LayerOptions& options, Diary& diary)
      : inner_(make_block(options)), name_(fmt::format("layer {}", options.layer)), diary_(diary) {}
  std::unique_ptr<LayerState> open(std::size_t slices) const override {
    return inner_->open(slices);
  }
  at::Tensor forward(const at::Tensor& x, LayerState& state, const SliceContext& c) override {
    diary_.push_back("F of " + name_);
    return inner_->forward(x, state, c);
  }
  at::Tensor input_grad(const at::Tensor& dy, LayerState& state, const SliceContext& c) override {
    diary_.push_back("I of " + name_);
    return inner_->input_grad(dy, state, c);
  }
  void weight_grad(LayerState& state, const SliceContext& c) override {
    diary_.push_back("W of " + name_);
    inner_->weight_grad(state, c);
  }
  at::Tensor evaluate(const at::Tensor& x, LayerState& state, const SliceContext& c) override {
    return inner_->evaluate(x, state, c);
  }
  std::vector<Parameter>& parameters() override { return inner_->parameters(); }

 private:
  std::unique_ptr<Layer> inner_;
  std::string name_;
  Diary& diary_;
};

TEST(Sharding, OneUnitTravelsWhileAnotherComputes) {
  ModelShape shape = small_shape(ModelFamily::llama, false);
  shape.layers = 3;
  RunPlan plan = plan_of({"1f1b", 1}, shape, run_on({.shard = 2}, true));
  run_threads(2, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Diary diary;
    NotedRanks noted(world, diary);
    Traffic traffic;
    Machine machine;
    machine.make_layer = [&](const LayerOptions& options) {
      return std::make_unique<NotedLayer>(options, diary);
    };
    Stage stage(plan, 0, machine, {}, {&noted, &traffic});
    Microbatch data;
    data.tokens = at::arange(16).view({1, 16});
    data.targets = data.tokens;
    stage.begin_step(1);
    at::Tensor gradient = stage.forward(0, 0, data, {});
    EXPECT_EQ(diary, (Diary{"begin weights of the embedding", "end weights of the embedding",
                            "begin weights of layer 0",  // while the embedding looks up
                            "end weights of layer 0", "begin weights of layer 1", "F of layer 0",
                            "end weights of layer 1", "begin weights of layer 2", "F of layer 1",
                            "end weights of layer 2", "begin weights of the head", "F of layer 2",
                            "end weights of the head"}));
    diary.clear();
    stage.input_grad(0, 0, gradient);
    EXPECT_EQ(diary, (Diary{"begin weights of layer 2", "end weights of layer 2",
                            "begin weights of layer 1", "I of layer 2", "end weights of layer 1",
                            "begin weights of layer 0", "I of layer 1", "end weights of layer 0",
                            "I of layer 0", "begin gradients of the embedding",
                            "end gradients of the embedding"}));
    diary.clear();
    stage.weight_grad(0, 0);
    EXPECT_EQ(diary,
              (Diary{"begin weights of the head", "end weights of the head",
                     "begin gradients of the head", "W of layer 2", "end gradients of the head",
                     "begin gradients of layer 2", "W of layer 1", "end gradients of layer 2",
                     "begin gradients of layer 1", "W of layer 0", "end gradients of layer 1",
                     "begin gradients of layer 0", "end gradients of layer 0"}));
  });
}

// What a thread allocates, and the most that was there at once.
struct Allocated : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    bytes += size;
    peak = std::max(peak, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t bytes = 0, peak = 0;
};

void keep_gathered(Schedule& lowered) {
  for (std::size_t d = 0; d < lowered.programs.size(); ++d) {
    Program& program = lowered.programs[d];
    std::set<int> stages;
    for (const Op& op : program)
      stages.insert(op.stage);
    for (const int stage : stages) {
      program.insert(program.begin(), make_op(OpKind::Unshard, stage, -1));
      program.push_back(make_op(OpKind::Reshard, stage, -1));
    }
  }
}

// From the first forward of a stage to its second.
void keep_for_two(Schedule& lowered) {
  for (Program& program : lowered.programs) {
    Program out;
    std::map<int, int> forwards;
    for (const Op& op : program) {
      if (op.kind == OpKind::F && forwards[op.stage]++ == 0)
        out.push_back(make_op(OpKind::Unshard, op.stage, -1));
      out.push_back(op);
      if (op.kind == OpKind::F && forwards[op.stage] == 2)
        out.push_back(make_op(OpKind::Reshard, op.stage, -1));
    }
    program = std::move(out);
  }
}

// Nor does it end: the step does that.
void keep_without_end(Schedule& lowered) {
  keep_gathered(lowered);
  for (Program& program : lowered.programs)
    std::erase_if(program, [](const Op& op) { return op.kind == OpKind::Reshard; });
}

// A microbatch without tokens computes nothing: what it takes is what it gathers and sums.
TEST(Sharding, GathersNoMoreThanThePlanSays) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::bert}) {
    ModelShape shape = small_shape(family, false);
    shape.dim = shape.vocab_size = 64;  // of which every rank has as many rows
    shape.ffn_dim = shape.positions = 128;
    TrainOptions run = run_on({.shard = 4}, true);
    const RunPlan plan = plan_of({"1f1b", 1}, shape, run);
    run.change_schedule = keep_gathered;
    const RunPlan keeping = plan_of({"1f1b", 1}, shape, run);
    const std::vector<int> stages = {0};
    const GatheredBytes most = gathered_bytes(plan, stages);
    run_threads(4, {}, [&](Communicator& world) {
      at::set_num_threads(1);
      Traffic traffic;
      Stage stage(plan, 0, {}, {}, {&world, &traffic});
      Microbatch nothing;
      nothing.tokens = nothing.targets = at::empty({0, 16}, at::kLong);
      const auto peak_of = [&](const std::function<void()>& op) {
        const auto watch = std::make_shared<Allocated>();
        const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
        op();
        EXPECT_EQ(watch->bytes, 0);
        return watch->peak;
      };
      const std::int64_t forward = peak_of([&] { stage.forward(0, 0, nothing, at::Tensor()); });
      EXPECT_EQ(forward, most.weights);
      const std::int64_t backward = peak_of([&] { stage.backward(0, 0, at::Tensor()); });
      EXPECT_LE(backward, most.weights + most.gradients + most.messages);
      EXPECT_GT(backward, most.gradients + most.messages);
      // Gathered one after the other: far from all of them.
      std::int64_t all = 0;
      for (const Parameter* parameter : stage.parameters())
        all += static_cast<std::int64_t>(parameter->value.nbytes());
      EXPECT_LT(2 * forward, all);
      const std::int64_t kept = peak_of([&] {
        stage.unshard();
        stage.forward(1, 0, nothing, at::Tensor());
        stage.reshard();
      });
      EXPECT_GT(kept, all);
      EXPECT_LE(kept, gathered_bytes(keeping, stages).weights);
      EXPECT_LT(gathered_bytes(keeping, stages).weights, 2 * all);
    });
  }
}

TEST(Sharding, AStageBetweenUnshardAndReshardIsGatheredOnce) {
  const ModelShape shape = small_shape(ModelFamily::gpt2, true);
  for (const Case& c : {Case{"1f1b", 2}, Case{"zb-v", 2}}) {
    SCOPED_TRACE(c.schedule);
    TrainOptions run = run_on({.shard = 2}, true);
    const Trained reference = train(c, shape, run);
    const auto sent = [](const Trained& trained, std::size_t rank) {
      return trained.traffic[rank].of(TrafficClass::parameter);
    };
    run.change_schedule = keep_gathered;
    const RunPlan plan = plan_of(c, shape, run);
    const Trained kept = train(c, shape, run);
    expect_equal_bits(kept, reference);
    expect_predicted_traffic(kept, plan, run.steps);
    for (std::size_t rank = 0; rank < kept.traffic.size(); ++rank) {
      const MeshPlace place = place_of(static_cast<int>(rank), plan.mesh);
      std::int64_t own = 0;
      for (const int stage : plan.stages_of(place.pipeline))
        for (const ParameterShape& p : stage_parameters(plan.shape, plan.layers_of(stage))) {
          const BlockRows rows = share_rows(p.shape[0], place.data, 2);
          own += (rows.end - rows.begin) * (p.count() / p.shape[0]);
        }
      EXPECT_EQ(sent(kept, rank), run.steps * own);
    }
    run.change_schedule = keep_for_two;
    const Trained two = train(c, shape, run);
    expect_equal_bits(two, reference);
    expect_predicted_traffic(two, plan_of(c, shape, run), run.steps);
    for (std::size_t rank = 0; rank < two.traffic.size(); ++rank) {
      EXPECT_LT(sent(two, rank), sent(reference, rank));
      EXPECT_GT(sent(two, rank), sent(kept, rank));
    }
    run.change_schedule = keep_without_end;
    expect_equal_bits(train(c, shape, run), reference);
    // Of states nothing is gathered, so there is nothing to keep.
    run.sharded = false;
    const Trained states = train(c, shape, run);
    run.change_schedule = {};
    expect_equal_bits(states, train(c, shape, run));
  }
}

TEST(Sharding, ARankWithoutTokensJoinsTheOthers) {
  // Documents of 3 to 16 tokens; three of them a step, for eight places.
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t n = 0; starts.back() < 4000; ++n)
    starts.push_back(std::min<std::int64_t>(4000, starts.back() + 3 + (n * 7919) % 14));
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const ModelShape shape = small_shape(family, family == ModelFamily::gpt2);
    TrainOptions run = run_on({}, false);
    run.source = test::tokens(starts);
    run.data.packing = Packing::sequences;
    run.global_batch_size = 3;
    run.microbatches = 1;
    const Trained serial = train({"1f1b", 1}, shape, run);
    run.mesh = {.shard = 4};
    run.microbatches = 2;
    run.sharded = true;
    for (const Case& c : {Case{"1f1b", 1}, Case{"1f1b", 2}, Case{"zb-v", 1}}) {
      SCOPED_TRACE(testing::Message() << name_of(family) << " " << c.schedule);
      expect_close(train(c, shape, run), serial);
    }
  }
}

TEST(Sharding, EvaluationGathersToo) {
  const ModelShape shape = small_shape(ModelFamily::bert, true);
  const Dataset data(test::tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
  const auto evaluated = [&](bool sharded) {
    const RunPlan plan = plan_of({"zb-v", 2}, shape, run_on({.shard = 2}, sharded));
    double loss = 0;
    on_ranks(plan, {}, [&](Communicator& world, Trainer& trainer) {
      const double here = trainer.evaluate(data, 11);
      if (world.rank() == 0) loss = here;
      for (const Parameter* parameter : trainer.parameters())
        EXPECT_EQ(parameter->value.storage().nbytes() == 0, sharded) << parameter->name;
    });
    return loss;
  };
  EXPECT_EQ(evaluated(true), evaluated(false));
}

TEST(Sharding, ModulesOfOnesOwnAreRefused) {
  const ModelShape shape = small_shape(ModelFamily::gpt2, false);
  const RunPlan plan = plan_of({"1f1b", 1}, shape, run_on({.shard = 2}, true));
  const LayerFactory own = [](const LayerOptions& options) {
    const at::Tensor gain = at::ones({options.shape.dim}).set_requires_grad(true);
    OwnModule module;
    module.parameters = {{"gain", gain}};
    module.forward = [gain](const at::Tensor& x) { return x * gain; };
    return std::make_unique<AutogradLayer>(options, module);
  };
  try {
    on_ranks(plan, {.make_layer = own}, [](Communicator&, Trainer&) {});
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("layer 0 is a module of your own"), std::string::npos)
        << error.what();
  }
}

// Per step about 3 M times the weights, of which a rank sends (s - 1) / s.
TEST(Sharding, SendsThreeTimesTheWeightsPerMicrobatch) {
  ModelShape shape = small_shape(ModelFamily::llama, false);
  shape.dim = shape.vocab_size = 64;
  shape.kv_heads = 2;
  shape.ffn_dim = 128;
  const TrainOptions run = run_on({.shard = 2}, true);
  const RunPlan plan = plan_of({"1f1b", 1}, shape, run);
  const std::int64_t m = run.microbatches, all = num_parameters(shape), ends = 64 * 64;
  const Traffic traffic = step_traffic(plan, 0, 1);
  // The embedding is not needed by B; the head is, by W.
  EXPECT_EQ(traffic.of(TrafficClass::parameter), m * (2 * all - ends) / 2);
  EXPECT_EQ(traffic.of(TrafficClass::gradient), m * all / 2);
  RunPlan states = plan;
  states.config.parallelism.sharding = Sharding::states;
  const Traffic less = step_traffic(states, 0, 1);
  EXPECT_EQ(less.of(TrafficClass::parameter), all / 2);
  EXPECT_EQ(less.of(TrafficClass::gradient), all / 2);
}

}  // namespace
}  // namespace sluice
