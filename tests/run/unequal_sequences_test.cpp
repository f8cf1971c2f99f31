// Sequences of unequal lengths, dealt to microbatches and data ranks, and what their steps take.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "sluice/run/batch_plan.h"
#include "sluice/run/memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/run/stash.h"
#include "sluice/run/step_traffic.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice {
namespace {

using Lengths = std::vector<std::int64_t>;

// Many short sequences and a few long ones.
Lengths long_tailed(std::size_t count, std::int64_t most, unsigned seed) {
  std::mt19937 random(seed);
  Lengths lengths(count);
  for (std::int64_t& length : lengths)
    length = 1 + static_cast<std::int64_t>(random()) % (random() % 8 == 0 ? most : most / 8 + 1);
  return lengths;
}

Lengths tokens_of(const BatchPlan& plan, const Lengths& lengths, int rank, int tensor) {
  Lengths out;
  for (const TokenShare& share : token_shares(plan, lengths, rank, tensor)) {
    EXPECT_EQ(share.degree, 1);
    out.push_back(share.tokens);
  }
  return out;
}

TEST(BatchPlan, TheLongestIsDealtFirstToWhoeverHasTheFewestTokens) {
  // 9 | 7 | 5 | 4, then 3 to the 4, 2 to the 5, 1 to the 7 (of those with 7 the first).
  const Lengths lengths = {1, 9, 2, 7, 3, 5, 4};
  const BatchPlan plan = deal_longest_first(lengths, 2, 2);
  EXPECT_EQ(plan.microbatches[0][0].sequences, (Lengths{1}));
  EXPECT_EQ(plan.microbatches[0][1].sequences, (Lengths{0, 3}));
  EXPECT_EQ(plan.microbatches[1][0].sequences, (Lengths{2, 5}));
  EXPECT_EQ(plan.microbatches[1][1].sequences, (Lengths{4, 6}));
  EXPECT_EQ(tokens_of(plan, lengths, 0, 1), (Lengths{9, 7}));
  EXPECT_EQ(tokens_of(plan, lengths, 1, 1), (Lengths{8, 7}));
  EXPECT_EQ(tokens_of(plan, lengths, 0, 4), (Lengths{12, 8}));
  EXPECT_EQ(tokens_of(plan, lengths, 1, 4), (Lengths{8, 8}));
}

TEST(BatchPlan, EverySequenceIsDealtOnceAndNobodyGetsMoreThanTheBound) {
  for (const auto& [sequences, microbatches, ranks] :
       {std::tuple(64, 4, 2), std::tuple(37, 5, 3), std::tuple(8, 8, 1), std::tuple(3, 4, 2),
        std::tuple(1, 1, 1), std::tuple(100, 7, 1)})
    for (unsigned seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << sequences << " to " << microbatches << " x " << ranks);
      const Lengths lengths = long_tailed(static_cast<std::size_t>(sequences), 512, seed);
      const BatchPlan plan = deal_longest_first(lengths, microbatches, ranks);
      ASSERT_EQ(std::ssize(plan.microbatches), microbatches);
      Lengths dealt;
      for (const auto& shares : plan.microbatches) {
        ASSERT_EQ(std::ssize(shares), ranks);
        for (const auto& [degree, rank, share] : shares) {
          EXPECT_TRUE(std::is_sorted(share.begin(), share.end()));
          dealt.insert(dealt.end(), share.begin(), share.end());
        }
      }
      std::sort(dealt.begin(), dealt.end());
      Lengths all(lengths.size());
      std::iota(all.begin(), all.end(), std::int64_t{0});
      EXPECT_EQ(dealt, all);
      const std::int64_t parts = std::int64_t{microbatches} * ranks;
      const std::int64_t most = padded_to(sequences, parts) / parts * std::ranges::max(lengths);
      for (int rank = 0; rank < ranks; ++rank)
        for (const std::int64_t tokens : tokens_of(plan, lengths, rank, 1))
          EXPECT_LE(tokens, most);
      EXPECT_EQ(deal_longest_first(lengths, microbatches, ranks), plan);
      EXPECT_EQ(problem_of(plan, {sequences, ranks, 1}), "");
    }
}

TEST(BatchPlan, EqualSequencesAreDealtEvenlyAndTooFewLeaveSomeWithout) {
  const BatchPlan even = deal_longest_first(Lengths(12, 8), 2, 3);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(tokens_of(even, Lengths(12, 8), rank, 1), (Lengths{16, 16}));
  const Lengths few = {5, 6, 7};
  const BatchPlan plan = deal_longest_first(few, 4, 2);
  EXPECT_EQ(tokens_of(plan, few, 0, 2), (Lengths{8, 6, 0, 0}));
  EXPECT_EQ(tokens_of(plan, few, 1, 2), (Lengths{6, 0, 0, 0}));
}

// --- what a step of unequal microbatches takes ---

RunPlan ragged_plan(const char* schedule, int tensor = 1) {
  ModelShape shape;
  shape.family = ModelFamily::llama;
  shape.layers = 8;
  shape.dim = 16;
  shape.heads = shape.kv_heads = 2;
  shape.ffn_dim = 32;
  shape.vocab_size = 64;
  GeneratorOptions options;
  options.devices = 2;
  options.microbatches = 4;
  RunPlan plan =
      test::plan_for(shape, validate(generate_schedule(schedule, options)).lowered, 15, 6);
  plan.config.data.packing = Packing::sequences;
  plan.mesh.tensor = tensor;
  return plan;
}

TEST(UnequalMicrobatches, WithoutABatchEachIsAsLargeAsItMayBe) {
  // Six sequences for four microbatches: two of 15 tokens at most, padded for two tensor ranks.
  EXPECT_EQ(ragged_plan("1f1b").sequences(), 2);
  EXPECT_EQ(ragged_plan("1f1b").largest_share(0).tokens, 30);
  EXPECT_EQ(ragged_plan("1f1b", 4).largest_share(0).tokens, 32);
  EXPECT_EQ(ragged_plan("1f1b", 4).microbatch_text(), "at most 32 tokens");
  EXPECT_EQ(byte_costs(ragged_plan("1f1b")).num_microbatches(), 0);
  // Left to themselves, there are as many as it takes for one sequence each.
  Config config;
  config.data.packing = Packing::sequences;
  config.training.global_batch_size = 7;
  config.parallelism.data_parallel_shard_degree = 3;
  EXPECT_EQ(resolve_config(config).parallelism.num_microbatches, 3);
}

TEST(UnequalMicrobatches, EachKeepsAndSendsTheBytesOfItsOwnTokens) {
  RunPlan plan = ragged_plan("zb-v");
  plan.shares = {3, 0, 30, 7};
  const Costs costs = byte_costs(plan);
  ASSERT_EQ(costs.num_microbatches(), 4);
  for (int m = 0; m < 4; ++m) {
    const std::int64_t tokens = plan.shares[static_cast<std::size_t>(m)].tokens;
    const StashBytes block = block_stash(plan, tokens), head = head_stash(plan, tokens);
    for (int stage = 0; stage < 4; ++stage) {
      const OpCosts& own = costs.of(m, stage, 0);
      const auto kept = [&](std::int64_t of_block, std::int64_t of_head) {
        return tokens == 0 ? 0.0 : static_cast<double>(2 * of_block + (stage == 3 ? of_head : 0));
      };
      EXPECT_EQ(own.after_f, kept(block.after_f, head.after_f));
      EXPECT_EQ(own.after_i, kept(block.after_i, head.after_i));
      EXPECT_EQ(own.sent_forward,
                stage == 3 ? 0.0 : static_cast<double>(boundary_bytes(plan, tokens)));
    }
  }
  EXPECT_EQ(costs.at(0, 0).after_f, costs.of(2, 0, 0).after_f);  // the largest
}

TEST(UnequalMicrobatches, FullOnesTakeWhatThePlanSaysWithoutABatchAndSmallerOnesLess) {
  for (const char* schedule : {"1f1b", "gpipe", "zb-v", "v-half", "interleaved-1f1b"}) {
    SCOPED_TRACE(schedule);
    const RunPlan most = ragged_plan(schedule);
    RunPlan full = most, small = most;
    full.shares = {30, 30, 30, 30};
    small.shares = {30, 12, 0, 5};
    const auto peaks = [](const RunPlan& plan) {
      std::vector<double> out;
      for (const DeviceResult& device : simulate(plan.schedule, byte_costs(plan)).devices)
        out.push_back(device.peak_bytes);
      return out;
    };
    EXPECT_EQ(peaks(full), peaks(most));
    EXPECT_EQ(buffer_bytes(full), buffer_bytes(most));
    EXPECT_LT(peaks(small)[0], peaks(most)[0]);
    EXPECT_LT(buffer_bytes(small)[0], buffer_bytes(most)[0]);
    for (std::size_t device = 0; device < 2; ++device) {
      EXPECT_LE(peaks(small)[device], peaks(most)[device]);
      EXPECT_LE(buffer_bytes(small)[device], buffer_bytes(most)[device]);
      // As many tokens are sent as there are, not four times the most.
      const auto sent = [&](const RunPlan& plan) {
        return step_traffic(plan, static_cast<int>(device), 0).of(TrafficClass::boundary);
      };
      EXPECT_EQ(sent(small) * 120, sent(most) * 47);
    }
  }
}

}  // namespace
}  // namespace sluice
