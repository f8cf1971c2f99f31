// What sequences cost that ranks share: the published constants by hand, and the costs file's
// section.
#include "sluice/cost/sequence_costs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sluice/base/error.h"
#include "sluice/cost/costs.h"
#include "sluice/schedule/text_format.h"

namespace sluice {
namespace {

constexpr double kMiB = 1 << 20;

SequenceCosts published(std::string_view model = "7b", int devices = 64,
                        std::int64_t longest = 192 * 1024,
                        StateSharding sharding = StateSharding::parameters) {
  return published_sequence_costs(model, devices, longest, sharding);
}

TEST(SequenceCosts, OneSequenceAloneTakesWhatTheFormulaSays) {
  const SequenceCosts costs = published();
  struct Golden {
    double length;
    int degree;
    double compute, all_to_all, total;  // ms; the first without the overhead
  };
  for (const Golden& golden : {Golden{4096, 1, 839.524, 0, 1468.880},
                               {4096, 8, 104.940, 10.611, 744.908},
                               {16384, 8, 548.812, 42.446, 1220.614},
                               {16384, 16, 274.406, 198.258, 1102.020},
                               {32768, 8, 1441.759, 84.891, 2156.006},
                               {32768, 16, 720.879, 396.515, 1746.751},
                               {131072, 64, 1753.282, 841.068, 3223.706}}) {
    SCOPED_TRACE(fmt::format("{} tokens on {}", golden.length, golden.degree));
    TokenSums sums;
    sums.add(golden.length);
    EXPECT_NEAR(1000 * (costs.compute_seconds(golden.degree, sums) - costs.b1), golden.compute,
                6e-4);
    EXPECT_NEAR(1000 * costs.all_to_all_seconds(golden.degree, sums), golden.all_to_all, 6e-4);
    EXPECT_NEAR(1000 * costs.seconds(golden.degree, sums), golden.total, 6e-4);
  }
}

TEST(SequenceCosts, SequencesOfAGroupAddUpAndShareOneOverhead) {
  const SequenceCosts costs = published();
  TokenSums one, two;
  one.add(1024);
  two.add(1024);
  two.add(1024);
  EXPECT_NEAR(costs.seconds(4, two) - costs.b1, 2 * (costs.seconds(4, one) - costs.b1), 1e-12);
}

TEST(SequenceCosts, CapacityIsWhatTheStatesLeave) {
  const SequenceCosts costs = published(), longer = published("7b", 64, 384 * 1024);
  EXPECT_NEAR(costs.state_bytes / kMiB, 1822.066, 6e-4);
  EXPECT_EQ(costs.capacity_tokens(30 * 1024 * kMiB), 6449);
  EXPECT_EQ(costs.capacity_tokens(28 * 1024 * kMiB), 5992);
  EXPECT_NEAR(longer.state_bytes / kMiB, 2009.566, 6e-4);
  EXPECT_EQ(longer.capacity_tokens(30 * 1024 * kMiB), 6407);
  EXPECT_EQ(longer.capacity_tokens(28 * 1024 * kMiB), 5950);
}

TEST(SequenceCosts, SixteenDevicesRecomputeEveryLayersMlpOf7b) {
  EXPECT_NEAR(published("7b", 16).stash_bytes_per_token / kMiB, 2.668764648, 1e-9);
  EXPECT_NEAR(published("7b", 32).stash_bytes_per_token / kMiB, 4.480441895, 1e-9);
  EXPECT_NEAR(published("13b", 16).stash_bytes_per_token / kMiB, 4.220439453, 1e-9);
}

TEST(SequenceCosts, ShardingLeavesEachDeviceItsShareOfTheStates) {
  const double all = published("7b", 8, 192 * 1024, StateSharding::none).state_bytes;
  EXPECT_NEAR(all / kMiB, 7.1174468994 * 16 * 1024, 1e-3);
  EXPECT_NEAR(published("7b", 8).state_bytes, all / 8, 1);
  EXPECT_NEAR(published("7b", 8, 192 * 1024, StateSharding::states).state_bytes,
              all * (6.0 / 8 / 8 + 2.0 / 8), 1);
}

TEST(SequenceCosts, AnUnknownModelIsRefusedWithTheKnownOnes) {
  try {
    published("70b");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "`model` is \"70b\": known are 7b, 13b, 30b");
  }
}

// --- In the costs file -------------------------------------------------------------------------

constexpr const char* kSection =
    R"("a1": 1e-9, "a2": 2e-4, "b1": 0.5, "stash_bytes_per_token": 4000, "state_bytes": 1e9,
       "all_to_all_bytes_per_token": 800, "bytes_per_s": {"2": 1e11, "4": 5e10}, "heads": 12)";

SequenceCosts read(const std::string& section) {
  return sequence_costs_from_json(fmt::format(R"({{"schema": 1, "flexsp": {{{}}}}})", section));
}

TEST(SequenceCostsFile, ItsSectionNeedsNoStages) {
  const SequenceCosts costs = read(kSection);
  EXPECT_EQ(costs.a1, 1e-9);
  EXPECT_EQ(costs.a2, 2e-4);
  EXPECT_EQ(costs.b1, 0.5);
  EXPECT_EQ(costs.stash_bytes_per_token, 4000);
  EXPECT_EQ(costs.state_bytes, 1e9);
  EXPECT_EQ(costs.all_to_all_bytes_per_token, 800);
  EXPECT_EQ(costs.bytes_per_s, (std::map<int, double>{{2, 1e11}, {4, 5e10}}));
  EXPECT_EQ(costs.heads, 12);
}

TEST(SequenceCostsFile, WhatIsWrittenReadsBackTheSame) {
  Costs costs(1, 1);
  costs.flexsp = read(kSection);
  const std::string text = costs_to_json(costs);
  const Costs whole = costs_from_json(text, read_schedule("0F0,0B0\n"));
  EXPECT_EQ(costs_to_json(whole), text);
  EXPECT_EQ(sequence_costs_from_json(text).bytes_per_s, costs.flexsp->bytes_per_s);
  EXPECT_FALSE(stage_costs_from_json(costs_to_json(Costs(1, 1))).flexsp);
}

TEST(SequenceCostsFile, MistakesNameTheEntry) {
  const auto error_of = [](const std::string& section) {
    try {
      read(section);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto with = [](std::string_view what, std::string_view by) {
    std::string text = kSection;
    const auto at = text.find(what);
    EXPECT_NE(at, text.npos) << what;
    return text.replace(at, what.size(), by);
  };
  EXPECT_EQ(error_of(with("\"b1\": 0.5, ", "")), "costs: flexsp has no 'b1'");
  EXPECT_EQ(error_of(with("1e-9", "-1")), "costs: flexsp.a1 is -1: needs a number from 0 to 1e18");
  EXPECT_NE(error_of(with("\"heads\"", "\"head\"")).find("did you mean 'heads'?"),
            std::string::npos);
  EXPECT_EQ(error_of(with("12", "12.5")), "costs: flexsp.heads is 12.5: needs a number of heads");
  EXPECT_EQ(error_of(with("12", "0")), "costs: flexsp.heads is 0: needs at least 1");
  EXPECT_EQ(error_of(with("4000", "0")),
            "costs: flexsp.stash_bytes_per_token is 0: a token must take memory");
  EXPECT_EQ(error_of(with("\"4\"", "\"3\"")),
            "costs: flexsp.bytes_per_s has '3': a degree is a power of two from 2 to 1048576");
  EXPECT_EQ(error_of(with("5e10", "0")),
            "costs: flexsp.bytes_per_s.4 is 0: leave out a degree that is not to be used");
  EXPECT_EQ(
      error_of(with("5e10", "1e-300")),
      "costs: flexsp.bytes_per_s.4 is 1e-300: needs bytes per second, at least 1; leave out a "
      "degree that is not to be used");
  EXPECT_EQ(error_of(with("{\"2\": 1e11, \"4\": 5e10}", "[1]")),
            "costs: flexsp.bytes_per_s is [1]: needs an object with one number per degree");
  try {
    sequence_costs_from_json(R"({"schema": 1})");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "costs: no section 'flexsp', which says what shared sequences cost");
  }
}

}  // namespace
}  // namespace sluice
