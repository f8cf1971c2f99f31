// Packed documents as a GPU computes them, without one: which call computes what, and that it comes
// to the same as plain attention, with the kernels of emulated_kernels.cpp.
#include "sluice/model/attention_packed.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/packed_case.h"

namespace sluice {
namespace {

using test::PackedCase;
using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kNoLimit = std::int64_t{1} << 40;

TEST(LongLengths, AreEightToADoublingUpToTheSequence) {
  EXPECT_EQ(long_lengths({0, 5000}, 2048, kNoLimit),
            (Lengths{2048, 2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096, 4608, 5000}));
  EXPECT_EQ(long_lengths({0, 32768}, 2048, kNoLimit).size(), 33U);
  EXPECT_EQ(long_lengths({0, 4096}, 3000, kNoLimit), (Lengths{3000, 3072, 3328, 3584, 3840, 4096}));
  EXPECT_EQ(long_lengths({0, 12}, 3, kNoLimit), (Lengths{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(LongLengths, HaveThoseOfAllSlices) {
  EXPECT_EQ(long_lengths({0, 2100, 4400, 4500}, 2048, kNoLimit), (Lengths{2048, 2100, 2300}));
}

TEST(LongLengths, AreNoneWhereNoDocumentCanBeLong) {
  EXPECT_EQ(long_lengths({0, 2047}, 2048, kNoLimit), Lengths());
  EXPECT_EQ(long_lengths({0, 4096}, 0, kNoLimit), Lengths());
  EXPECT_EQ(long_lengths({0, 4096}, 2048, 2047), Lengths());
}

TEST(LongLengths, EndWhereKernelsCountNoFurther) {
  EXPECT_EQ(long_lengths({0, 4096}, 2048, 2600), (Lengths{2048, 2304, 2560}));
  ModelShape shape;
  shape.dim = 2048;
  shape.heads = shape.kv_heads = 16;
  const Lengths lengths = long_lengths(shape, 1, at::kBFloat16, {0, 1 << 20}, 2048);
  EXPECT_LT(lengths.back() * 3 * 2048, std::int64_t{1} << 31);
  EXPECT_GT(lengths.back(), 300000);
}

TEST(LongLengths, AreForCausalHalfPrecisionOnly) {
  ModelShape shape;
  shape.dim = 256;
  shape.heads = shape.kv_heads = 4;
  const auto count = [&](at::ScalarType dtype) {
    return long_lengths(shape, 1, dtype, {0, 4096}, 2048).size();
  };
  EXPECT_EQ(count(at::kBFloat16), 9U);
  EXPECT_EQ(count(at::kHalf), 9U);
  EXPECT_EQ(count(at::kFloat), 0U);
  shape.family = ModelFamily::bert;
  EXPECT_EQ(count(at::kBFloat16), 0U);
  shape.family = ModelFamily::llama;
  shape.heads = shape.kv_heads = 1;
  EXPECT_EQ(count(at::kBFloat16), 0U);
}

// Documents [0, 40) [40, 45) [45, 110), in slices of 60 and 50 tokens; long from 32 on.
TEST(PackedCalls, ALongDocumentTakesItsPlaceAndNobodyComputesIt) {
  const Documents documents{.starts = {{0, 40, 45}}};
  const SliceBounds bounds = {0, 60, 110};
  const Lengths lengths = long_lengths(bounds, 32, kNoLimit);
  const PackedCalls first = packed_calls(documents, bounds, 0, lengths);
  ASSERT_EQ(first.long_documents.size(), 1U);
  EXPECT_EQ(first.long_documents[0].begin, 0);
  EXPECT_EQ(first.long_documents[0].length, 40);
  EXPECT_EQ(first.long_documents[0].padded, 40);
  EXPECT_EQ(first.cumulative_queries, (std::vector<std::int32_t>{0, 40, 40, 45, 60}));
  EXPECT_EQ(first.cumulative_keys, (std::vector<std::int32_t>{0, 0, 40, 45, 60}));
  EXPECT_EQ(first.max_queries, 15);
  EXPECT_FALSE(first.earlier_keys);
  // The last one began before: 50 queries that see 65 keys.
  const PackedCalls second = packed_calls(documents, bounds, 1, lengths);
  EXPECT_TRUE(second.long_documents.empty());
  EXPECT_EQ(second.cumulative_queries, (std::vector<std::int32_t>{0, 50}));
  EXPECT_EQ(second.cumulative_keys, (std::vector<std::int32_t>{0, 65}));
  EXPECT_EQ(second.max_keys, 65);
  EXPECT_EQ(second.first_keys, Lengths{45});
  EXPECT_TRUE(second.earlier_keys);
}

TEST(PackedCalls, EveryRowIsInExactlyOneCall) {
  for (int seed = 0; seed < 2000; ++seed) {
    const PackedCase c = test::random_packed_case(seed);
    const Lengths lengths = c.lengths();
    for (std::size_t slice = 0; slice + 1 < c.bounds.size(); ++slice) {
      const PackedCalls calls = packed_calls({.starts = c.starts}, c.bounds, slice, lengths);
      const std::int64_t length = c.bounds[slice + 1] - c.bounds[slice];
      std::vector<int> computed(c.starts.size() * static_cast<std::size_t>(length));
      const auto count = [&](std::int64_t first, std::int64_t rows) {
        for (std::int64_t row = first; row < first + rows; ++row)
          ++computed.at(static_cast<std::size_t>(row));
      };
      for (const LongDocument& document : calls.long_documents) {
        count(document.sequence * length + document.begin, document.length);
        EXPECT_GE(document.length, c.long_document);
        EXPECT_GE(document.padded, document.length);
        EXPECT_LE(document.padded,
                  document.length + std::max<std::int64_t>(document.length / 8, 1));
        EXPECT_TRUE(std::binary_search(lengths.begin(), lengths.end(), document.padded));
      }
      for (std::size_t e = 0; e + 1 < calls.cumulative_queries.size(); ++e) {
        const auto begin = calls.cumulative_queries[e];
        const auto queries = calls.cumulative_queries[e + 1] - begin;
        const auto keys = calls.cumulative_keys[e + 1] - calls.cumulative_keys[e];
        if (queries > 0 && keys > 0) count(begin, queries);
      }
      EXPECT_TRUE(std::all_of(computed.begin(), computed.end(), [](int n) { return n == 1; }))
          << c.name << ", slice " << slice;
      EXPECT_EQ(calls.cumulative_queries.back(), static_cast<std::int64_t>(computed.size()));
    }
  }
}

TEST(PackedAttention, IsWhatPlainAttentionIs) {
  at::set_num_threads(1);
  for (const PackedCase& c : test::packed_cases(32)) {
    const test::PackedOutcome outcome = test::run_packed(c, at::kCPU);
    EXPECT_LE(outcome.error, 5e-2) << c.name << ": " << outcome.where;
    EXPECT_EQ(outcome.num_long > 0, c.long_document > 0) << c.name;
  }
  for (int seed = 0; seed < 60; ++seed) {
    const PackedCase c = test::random_packed_case(seed);
    const test::PackedOutcome outcome = test::run_packed(c, at::kCPU);
    EXPECT_LE(outcome.error, 5e-2) << c.name << ": " << outcome.where;
  }
}

TEST(PackedAttention, NeedsNoPlanThatWasNotMadeAtTheStart) {
  at::set_num_threads(1);
  for (int seed = 0; seed < 20; ++seed) {
    const PackedCase c = test::random_packed_case(seed);
    const auto made = test::plans_used(
        [&] { make_attention_plans(c.lengths(), c.shape(), at::TensorOptions(at::kBFloat16)); });
    EXPECT_EQ(made.size(), 2 * c.lengths().size());
    std::size_t num_long = 0;
    const auto used = test::plans_used([&] { num_long = run_packed(c, at::kCPU).num_long; });
    EXPECT_EQ(used.empty(), num_long == 0);
    for (const std::string& plan : used)
      EXPECT_EQ(made.count(plan), 1U) << c.name << ": " << plan;
  }
}

}  // namespace
}  // namespace sluice
