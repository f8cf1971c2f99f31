#include "sluice/run/batch_plan.h"

#include <gtest/gtest.h>

#include "sluice/base/error.h"
#include "sluice/cost/head_share.h"
#include "sluice/run/batch_plan_file.h"

namespace sluice {
namespace {

// 4 sequences on 4 ranks with 4 heads.
constexpr BatchLimits kLimits{4, 4, 4};

BatchPlan good() { return {{{{2, 0, {3}}, {1, 2, {0, 2}}}, {{4, 0, {1}}}}}; }

std::string problem(const std::function<void(BatchPlan&)>& change) {
  BatchPlan plan = good();
  change(plan);
  return problem_of(plan, kLimits);
}

TEST(BatchPlan, WhatDoesNotFitIsNamed) {
  EXPECT_EQ(problem([](BatchPlan&) {}), "");
  EXPECT_EQ(problem([](BatchPlan& p) { p.microbatches.clear(); }), "there are no microbatches");
  EXPECT_EQ(
      problem([](BatchPlan& p) { p.microbatches[1][0].sequences.clear(); }),
      "sequence 1 is in no group; 3 of the 4 sequences of training.global_batch_size are planned");
  EXPECT_EQ(problem([](BatchPlan& p) {
              p.microbatches[1][0].sequences = {1, 3};
            }),
            "microbatch 1: sequence 3 is planned twice");
  EXPECT_EQ(
      problem([](BatchPlan& p) { p.microbatches[1][0].sequences = {4}; }),
      "microbatch 1: sequence 4 is not in the global batch, which has 0 to 3: plan batches of "
      "4 sequences, or set training.global_batch_size to what was planned");
  EXPECT_EQ(problem([](BatchPlan& p) { p.microbatches[0][0].degree = 3; }),
            "microbatch 0: a group has degree 3: needs a power of two");
  EXPECT_EQ(problem([](BatchPlan& p) { p.microbatches[0][0].degree = 0; }),
            "microbatch 0: a group has degree 0: needs a power of two");
  EXPECT_EQ(problem([](BatchPlan& p) { p.microbatches[0][0].degree = 8; }),
            "microbatch 0: a group has degree 8: there are 4 data ranks");
  EXPECT_EQ(
      problem([](BatchPlan& p) { p.microbatches[0][0].first_rank = 1; }),
      "microbatch 0: a group of degree 2 starts at rank 1: needs a multiple of 2 from 0 to 2");
  EXPECT_EQ(
      problem([](BatchPlan& p) { p.microbatches[0][0].first_rank = 4; }),
      "microbatch 0: a group of degree 2 starts at rank 4: needs a multiple of 2 from 0 to 2");
  EXPECT_EQ(problem([](BatchPlan& p) { p.microbatches[0][1].first_rank = 1; }),
            "microbatch 0: rank 1 is in two groups");
  EXPECT_EQ(
      problem_of(good(), {4, 4, 6}),
      "microbatch 1: a group has degree 4: ranks that share sequences divide the heads, and a "
      "tensor rank has 6; use a degree that divides them");
}

TEST(BatchPlan, ARanksShareIsPaddedSoThatItDivides) {
  const std::vector<std::int64_t> lengths = {5, 9, 1, 3};
  const BatchPlan plan = good();
  EXPECT_EQ(share_of(plan.microbatches[0][0], lengths, 1), TokenShare(2, 2));
  EXPECT_EQ(share_of(plan.microbatches[0][0], lengths, 3), TokenShare(3, 2));
  EXPECT_EQ(share_of(plan.microbatches[1][0], lengths, 1), TokenShare(3, 4));
  EXPECT_EQ(token_shares(plan, lengths, 2, 1), (std::vector<TokenShare>{{6, 1}, {3, 4}}));
  // Rank 3 has nothing in the first microbatch.
  EXPECT_EQ(token_shares(plan, lengths, 3, 1), (std::vector<TokenShare>{{0, 1}, {3, 4}}));
}

TEST(HeadShare, KeyHeadsFollowTheirQueries) {
  const auto keys = [](std::int64_t heads, std::int64_t kv_heads, int degree, int index) {
    return head_share({.heads = heads, .kv_heads = kv_heads}, degree, index).kv_heads;
  };
  using Heads = std::vector<std::int64_t>;
  EXPECT_EQ(keys(8, 8, 4, 1), (Heads{2, 3}));
  EXPECT_EQ(keys(8, 4, 4, 3), (Heads{3}));
  EXPECT_EQ(keys(8, 2, 4, 1), (Heads{0}));  // ranks 0 and 1 have copies of it
  EXPECT_EQ(keys(8, 2, 4, 2), (Heads{1}));
  EXPECT_EQ(keys(6, 3, 2, 0), (Heads{0, 0, 1}));  // queries 0 and 1, and 2: one each
  EXPECT_EQ(keys(6, 3, 2, 1), (Heads{1, 2, 2}));
}

const std::string kHash = "ab12" + std::string(60, '0'), kOther = std::string(64, 'c');

PlannedBatches parsed(std::string_view text) { return parse_batch_plans(text, "plans", kLimits); }

std::string error_of(std::string_view text) {
  try {
    parsed(text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
  return "";
}

TEST(BatchPlanFile, WhatIsWrittenIsReadBack) {
  const std::string line = batch_plan_line(7, {good(), kHash});
  EXPECT_EQ(line, R"({"step":7,"lengths_sha256":")" + kHash +
                      R"(","microbatches":[)"
                      R"({"groups":[{"degree":2,"first_rank":0,"sequences":[3]},)"
                      R"({"degree":1,"first_rank":2,"sequences":[0,2]}]},)"
                      R"({"groups":[{"degree":4,"first_rank":0,"sequences":[1]}]}]})");
  const PlannedBatches read = parsed(line + "\n\n" + batch_plan_line(8, {good(), kOther}) + "\n");
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(batch_plan_line(7, read.at(7)), line);
  EXPECT_EQ(read.at(8).lengths_sha256, kOther);
}

TEST(BatchPlanFile, WhatIsWrongIsNamedWithItsLine) {
  const std::string line = batch_plan_line(7, {good(), kHash});
  EXPECT_EQ(error_of(""), "plans: there is no plan in it");
  EXPECT_EQ(error_of(line + "\n" + line), "plans: line 2: step 7 is planned twice");
  EXPECT_EQ(error_of(batch_plan_line(0, {good(), kHash})),
            "plans: line 1: step is 0: steps count from 1");
  EXPECT_NE(error_of("{").find("plans: line 1: "), std::string::npos);
  EXPECT_EQ(error_of("[]"), "plans: line 1: the plan is no object");
  EXPECT_EQ(error_of(R"({"step": 1, "lengths_sha256": "a"})"),
            "plans: line 1: the plan has no microbatches");
  EXPECT_EQ(error_of(R"({"step": 1, "lengths_sha256": "a", "microbatches": [], "x": 1})"),
            "plans: line 1: the plan has \"x\": needs lengths_sha256, microbatches, step");
  EXPECT_EQ(error_of(R"({"step": 1.5, "lengths_sha256": ")" + kHash + R"(", "microbatches": []})"),
            "plans: line 1: the plan.step is 1.5: needs a whole number from 0 to "
            "9223372036854775807");
  EXPECT_EQ(error_of(R"({"step": 1, "lengths_sha256": ")" + kHash +
                     R"(", "microbatches": [{"groups": [)"
                     R"({"degree": -2, "first_rank": 0, "sequences": []}]}]})"),
            "plans: line 1: microbatches[0].groups[0].degree is -2: needs a whole number from 0 to "
            "16777216");
  BatchPlan forgets = good();
  forgets.microbatches.pop_back();
  EXPECT_EQ(error_of(batch_plan_line(3, {forgets, kHash})),
            "plans: line 1: sequence 1 is in no group; 3 of the 4 sequences of "
            "training.global_batch_size are planned");
}

TEST(BatchPlanFile, AHashHas64HexadecimalDigitsInEitherCase) {
  const std::string capitals = "AB12" + std::string(60, '0');
  EXPECT_EQ(parsed(batch_plan_line(7, {good(), capitals})).at(7).lengths_sha256, kHash);
  const std::string wrong = "needs 64 hexadecimal digits";
  EXPECT_EQ(error_of(batch_plan_line(7, {good(), "x"})),
            "plans: line 1: the plan.lengths_sha256 is \"x\": " + wrong);
  for (const std::string& hash :
       {std::string(), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g')})
    EXPECT_NE(error_of(batch_plan_line(7, {good(), hash})).find(wrong), std::string::npos) << hash;
}

TEST(BatchPlanFile, LengthsAreDecimalNumbersBetweenCommas) {
  const std::vector<std::int64_t> lengths = {5, 17, 100000};
  EXPECT_EQ(lengths_text(lengths), "5,17,100000");
}

}  // namespace
}  // namespace sluice
