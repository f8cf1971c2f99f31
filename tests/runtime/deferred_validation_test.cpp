// Validation that nobody waits for: the same bits as validation before the update, whether there is
// something to clip or not, and the same end when training diverges.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "runtime/trained.h"
#include "sluice/base/error.h"
#include "sluice/comm/threads/threads.h"

namespace sluice {
namespace {

using test::Case;
using test::shape_of;
using test::Trained;
using test::TrainOptions;

constexpr int kSteps = 5;

struct MeshCase {
  Case c;
  MeshShape mesh = {};
};

const std::vector<MeshCase> kCases = {
    {{"1f1b", 1}},
    {{"1f1b", 4}},
    {{"gpipe", 2}},
    {{"interleaved-1f1b", 2}},
    {{"zb-v", 4}},
    {{"v-half", 2, 1, 0, {}, NumberType::bfloat16}},
    {{"1f1b", 2, 1, 0, {}, NumberType::bfloat16}, {.shard = 2}},
    {{"dualpipe", 2}},
    {{"seq1f1b", 2, 2}},
    {{"zb-v", 2}, {.shard = 2}},
    {{"v-half", 2}, {.replicate = 2, .shard = 2}},
    {{"1f1b", 2}, {.shard = 2, .tensor = 2}},
};

TrainOptions run_on(const MeshShape& mesh, double max_norm, bool deferred) {
  TrainOptions run;
  run.steps = kSteps;
  run.global_batch_size = 16;
  run.microbatches = 16 / mesh.data();
  run.mesh = mesh;
  run.max_norm = max_norm;
  run.deferred = deferred;
  return run;
}

void expect_the_same(const MeshCase& where, const ModelShape& shape, double max_norm, int clipped) {
  SCOPED_TRACE(testing::Message() << where.c.schedule << " on " << where.c.devices << " x "
                                  << where.mesh.replicate << " x " << where.mesh.shard << " x "
                                  << where.mesh.tensor << ", norms up to " << max_norm);
  const Trained sync = test::train(where.c, shape, run_on(where.mesh, max_norm, false));
  const Trained deferred = test::train(where.c, shape, run_on(where.mesh, max_norm, true));
  ASSERT_EQ(deferred.losses.size(), static_cast<std::size_t>(kSteps));
  test::expect_equal_bits(deferred, sync);
  for (const auto& [name, state] : sync.states)
    EXPECT_TRUE(at::equal(state, deferred.states.at(name))) << name;
  EXPECT_EQ(std::count_if(sync.norms.begin(), sync.norms.end(),
                          [&](double norm) { return max_norm > 0 && norm > max_norm; }),
            clipped);
}

TEST(DeferredValidation, NeverClipping) {
  for (const MeshCase& where : kCases)
    expect_the_same(where, shape_of(ModelFamily::gpt2, true), 0, 0);
}

TEST(DeferredValidation, ClippingInEveryStep) {
  for (const MeshCase& where : kCases)
    expect_the_same(where, shape_of(ModelFamily::gpt2, true), 0.01, kSteps);
}

TEST(DeferredValidation, ClippingInOneStepOnly) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  // The first step's norm is by far the largest.
  for (const MeshCase& where : kCases)
    if (where.mesh.tensor == 1) expect_the_same(where, shape, 1, 1);
}

// A word that no microbatch but one of step 3 holds, and whose embedding is no number.
constexpr std::int64_t kPoisonedWord = 63;

std::shared_ptr<const TokenSource> poisoned_tokens() {
  std::vector<std::int32_t> out;
  for (int n = 0; n < 4000; ++n)
    out.push_back(n * n % 61);
  out[(2 * 16 + 11) * 16 + 5] = kPoisonedWord;  // sample 11 of the third batch
  return memory_source(std::move(out), {0, 4000});
}

struct Ended {
  std::set<std::string> errors;             // of all ranks
  std::map<std::string, std::string> held;  // weights and states, byte for byte
};

Ended train_until_poisoned(const MeshCase& where, const ModelShape& shape, bool deferred) {
  const Dataset data(poisoned_tokens(),
                     {.sequence_length = 16, .vocab_size = 64, .shuffle = false});
  const RunPlan plan = test::plan_of(where.c, shape, run_on(where.mesh, 0, deferred));
  Ended ended;
  std::mutex mutex;
  run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, data, world);
    for (const Parameter* parameter : trainer.parameters())
      if (parameter->name == "embedding.weight") parameter->value[kPoisonedWord].fill_(NAN);
    for (const Optimizer::State& state : trainer.optimizer().states())
      if (state.name == "embedding.weight/master" && state.own.begin <= kPoisonedWord &&
          kPoisonedWord < state.own.end)
        state.tensor[kPoisonedWord - state.own.begin].fill_(NAN);
    std::string error;
    try {
      for (int n = 1; n <= 4; ++n)
        trainer.advance(n);
      trainer.settle();
    } catch (const UserError& thrown) {
      error = thrown.what();
      EXPECT_EQ(thrown.code(), ExitCode::diverged);
    }
    const std::lock_guard lock(mutex);
    ended.errors.insert(error);
    const auto hold = [&](const std::string& name, const at::Tensor& tensor) {
      const at::Tensor whole = tensor.contiguous();
      ended.held[fmt::format("{} {}", world.rank(), name)] =
          std::string(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    };
    for (const Parameter* parameter : trainer.parameters())
      hold(parameter->name, parameter->value);
    for (const Optimizer::State& state : trainer.optimizer().states())
      hold(state.name, state.tensor);
  });
  return ended;
}

TEST(DeferredValidation, OneMicrobatchThatIsNoNumberEndsTheRunAsItWasBefore) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  for (const MeshCase& where : kCases) {
    if (where.mesh.tensor > 1) continue;
    SCOPED_TRACE(testing::Message() << where.c.schedule << " on " << where.c.devices << " x "
                                    << where.mesh.replicate << " x " << where.mesh.shard);
    const Ended sync = train_until_poisoned(where, shape, false);
    const Ended deferred = train_until_poisoned(where, shape, true);
    ASSERT_EQ(sync.errors.size(), 1U);
    EXPECT_NE(sync.errors.begin()->find("step 3: the loss is nan and the gradient norm nan"),
              std::string::npos)
        << *sync.errors.begin();
    EXPECT_EQ(deferred.errors, sync.errors);
    EXPECT_TRUE(deferred.held == sync.held);
  }
}

}  // namespace
}  // namespace sluice
