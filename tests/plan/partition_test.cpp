#include "sluice/plan/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "sluice/base/error.h"
#include "sluice/cost/flops.h"
#include "sluice/cost/part_times.h"
#include "sluice/cost/slices.h"
#include "sluice/plan/device_memory.h"
#include "sluice/plan/run_memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice {
namespace {

using Layers = std::vector<std::int64_t>;

// What is compared of two splits, in this order.
struct Score {
  double work = 0, spread = 0, memory = 0, squares = 0;

  friend auto operator<=>(const Score&, const Score&) = default;
};

double cap_of(const PartitionQuery& query, int device) {
  const std::vector<double>& caps = query.memory_caps;
  if (caps.empty()) return std::numeric_limits<double>::infinity();
  return caps[caps.size() == 1 ? 0 : static_cast<std::size_t>(device)];
}

// Memory counts by what is left of the largest cap: a device with a smaller one has less left.
Score score(const PartitionQuery& query, const Layers& layers) {
  const Placement& placement = query.placement;
  std::vector<double> load(static_cast<std::size_t>(placement.num_devices()), 0);
  std::vector<double> stage_work;
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    double own = static_cast<double>(layers[static_cast<std::size_t>(stage)]) * query.work.layer;
    if (stage == 0) own += query.work.embedding;
    if (stage + 1 == placement.num_stages()) own += query.work.head;
    stage_work.push_back(own);
    for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
      load[static_cast<std::size_t>(placement.device_of(pipe, stage))] +=
          own / placement.num_pipes();
  }
  Score out;
  std::set<std::set<int>> seen;  // devices with the same stages count once
  for (int d = 0; d < placement.num_devices(); ++d) {
    const auto& placed = placement.stages_of(d);
    const std::set<int> stages(placed.begin(), placed.end());
    double low = 1e300, high = 0;
    Layers own;
    for (const int stage : stages) {
      low = std::min(low, stage_work[static_cast<std::size_t>(stage)]);
      high = std::max(high, stage_work[static_cast<std::size_t>(stage)]);
      own.push_back(layers[static_cast<std::size_t>(stage)]);
    }
    const double work = load[static_cast<std::size_t>(d)];
    out.work = std::max(out.work, work);
    double missing = 0;
    for (const double cap : query.memory_caps)
      missing = std::max(missing, cap - cap_of(query, d));
    if (!query.memory.empty())
      out.memory =
          std::max(out.memory, query.memory[static_cast<std::size_t>(d)].bytes(own) + missing);
    if (!seen.insert(stages).second) continue;
    out.spread += high - low;
    out.squares += work * work;
  }
  return out;
}

bool fits(const PartitionQuery& query, const Layers& layers) {
  if (query.memory.empty()) return true;
  const std::vector<double> bytes = device_bytes(query, layers);
  for (std::size_t d = 0; d < bytes.size(); ++d)
    if (bytes[d] > cap_of(query, static_cast<int>(d))) return false;
  return true;
}

// Every way to deal that keeps to the caps.
std::optional<Score> best_by_trying(const PartitionQuery& query) {
  const auto stages = static_cast<std::size_t>(query.placement.num_stages());
  std::optional<Score> best;
  Layers dealt(stages, 0);
  const std::function<void(std::size_t, std::int64_t)> deal = [&](std::size_t stage,
                                                                  std::int64_t left) {
    if (stage + 1 == stages) {
      dealt[stage] = left;
      if (!fits(query, dealt)) return;
      const Score tried = score(query, dealt);
      if (!best || tried < *best) best = tried;
      return;
    }
    for (std::int64_t n = stage == 0 ? 0 : 1; n <= left; ++n) {
      dealt[stage] = n;
      deal(stage + 1, left - n);
    }
  };
  deal(0, query.layers);
  return best;
}

void expect_best(const PartitionQuery& query) {
  SCOPED_TRACE(testing::Message() << query.placement.num_stages() << " stages on "
                                  << query.placement.num_devices() << ", " << query.layers
                                  << " layers, head " << query.work.head << ", caps "
                                  << testing::PrintToString(query.memory_caps));
  const std::optional<Score> best = best_by_trying(query);
  ASSERT_TRUE(best);
  const Layers dealt = best_partition(query);
  ASSERT_EQ(std::accumulate(dealt.begin(), dealt.end(), std::int64_t{0}), query.layers);
  for (std::size_t stage = 1; stage + 1 < dealt.size(); ++stage)
    ASSERT_GE(dealt[stage], 1);
  EXPECT_TRUE(fits(query, dealt));
  const Score got = score(query, dealt);
  EXPECT_EQ(got.work, best->work);
  EXPECT_EQ(got.spread, best->spread);
  EXPECT_EQ(got.memory, best->memory);
  EXPECT_NEAR(got.squares, best->squares, 1e-9);
  const std::vector<double> work = device_work(query, dealt);
  EXPECT_EQ(*std::max_element(work.begin(), work.end()), got.work);
}

const std::vector<Placement>& placements() {
  static const std::vector<Placement> all = {
      Placement::linear(1),    Placement::linear(2),    Placement::linear(4),
      Placement::looped(2, 2), Placement::looped(2, 3), Placement::vee(2, 2),
      Placement::vee(3, 2),    Placement::vee(2, 3),    Placement::mirrored(2),
      Placement::mirrored(3),  Placement::mirrored(4),  Placement::custom(2, {{0, 1, 1, 0, 0}})};
  return all;
}

TEST(Partition, IsTheBestOfAllWaysToDeal) {
  int tried = 0;
  for (const Placement& placement : placements())
    for (const PartWork& work : {PartWork{1, 0, 0}, PartWork{1, 0, 2.5}, PartWork{2, 0, 1},
                                 PartWork{1, 0.75, 0.5}, PartWork{1, 0, 30}, PartWork{3, 5, 4}})
      for (std::int64_t layers = std::max(placement.num_stages() - 2, 1); layers <= 10; ++layers) {
        expect_best({placement, layers, work, {}, {}});
        ++tried;
      }
  EXPECT_GT(tried, 500);
}

// With memory of made-up shapes: each device's moments weigh its stages differently, and caps, one
// for all or one for each, are from where nothing fits to where all does.
TEST(Partition, IsTheBestOfAllThatFitTheCaps) {
  std::mt19937 random(7);
  const auto pick = [&](int most) {
    return static_cast<double>(random() % static_cast<unsigned>(most));
  };
  int fitting = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    const Placement& placement = placements()[random() % placements().size()];
    PartitionQuery query{
        placement, placement.num_stages() + static_cast<int>(random() % 6), {}, {}, {}};
    query.work = {1 + pick(3), pick(4), pick(9) / 2};
    for (int d = 0; d < placement.num_devices(); ++d) {
      const auto& placed = placement.stages_of(d);
      const std::set<int> stages(placed.begin(), placed.end());
      DeviceMemory& memory = query.memory.emplace_back();
      memory.fixed = pick(10);
      memory.per_layer = pick(3);
      for (int m = 0; m < 1 + round % 3; ++m) {
        StashMoment& moment = memory.moments.emplace_back();
        for (std::size_t s = 0; s < stages.size(); ++s)
          moment.per_layer.push_back(pick(6));
        moment.ends = pick(4);
      }
    }
    expect_best(query);
    const bool each = round % 2 == 1 && placement.num_devices() > 1;
    for (int d = 0; d < (each ? placement.num_devices() : 1); ++d)
      query.memory_caps.push_back(5 + pick(30));
    if (best_by_trying(query)) {
      expect_best(query);
      ++fitting;
      continue;
    }
    ++refused;
    try {
      best_partition(query);
      FAIL() << "nothing fits";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(each ? "each has to be " : "the least possible is "),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(refused, 20);
}

TEST(Partition, TheLeastPossibleCapIsNamedAndWorks) {
  constexpr double kMiB = 1 << 20;
  PartitionQuery query{Placement::linear(2), 6, {1, 0, 2}, {}, {10 * kMiB}};
  query.memory = {{.fixed = 0, .per_layer = kMiB, .moments = {{{3 * kMiB}, 0}}},
                  {.fixed = 2 * kMiB, .per_layer = kMiB, .moments = {{{2 * kMiB}, 0}}}};
  // 4 MiB a layer, or 3 and 2: two layers and four are 8 and 14, three each 12 and 11.
  try {
    best_partition(query);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "parallelism.device_memory_mib is 10: no split of 6 layers over 2 stages fits; "
                 "the least possible is 12");
  }
  query.memory_caps = {12 * kMiB};
  EXPECT_EQ(best_partition(query), (Layers{3, 3}));
  query.memory_caps = {16 * kMiB};
  EXPECT_EQ(best_partition(query), (Layers{4, 2}));
}

TEST(Partition, EachDeviceKeepsToItsOwnCap) {
  constexpr double kMiB = 1 << 20;
  PartitionQuery query{Placement::linear(2), 6, {1, 0, 0}, {}, {}};
  for (int d = 0; d < 2; ++d)
    query.memory.push_back({.fixed = 0, .per_layer = kMiB, .moments = {{{kMiB}, 0}}});
  EXPECT_EQ(best_partition(query), (Layers{3, 3}));
  query.memory_caps = {10 * kMiB, 4 * kMiB};
  EXPECT_EQ(best_partition(query), (Layers{4, 2}));
  query.memory_caps = {4 * kMiB, 10 * kMiB};
  EXPECT_EQ(best_partition(query), (Layers{2, 4}));
  query.memory_caps = {4 * kMiB, 6 * kMiB};
  try {
    best_partition(query);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "parallelism.device_memory_mib lists 2 caps: no split of 6 layers over 2 stages "
                 "fits; each has to be 2 MiB larger");
  }
}

TEST(Partition, EqualWorkIsDealtEvenly) {
  EXPECT_EQ(best_partition({Placement::linear(4), 8, {}, {}, {}}), (Layers{2, 2, 2, 2}));
  EXPECT_EQ(best_partition({Placement::vee(2, 2), 8, {}, {}, {}}), (Layers{2, 2, 2, 2}));
}

TEST(Partition, ALargeHeadStandsAlone) {
  EXPECT_EQ(best_partition({Placement::linear(4), 9, {1, 0, 3}, {}, {}}), (Layers{3, 3, 3, 0}));
  EXPECT_EQ(best_partition({Placement::linear(4), 9, {1, 0, 100}, {}, {}}), (Layers{3, 3, 3, 0}));
}

TEST(Partition, StagesOfADeviceTakeAsLongAsEachOther) {
  // Device 0 holds the first and the last stage; the head works as much as three layers.
  EXPECT_EQ(best_partition({Placement::vee(2, 2), 13, {1, 0, 3}, {}, {}}), (Layers{4, 4, 4, 1}));
}

// Orders with several pipes on an odd number of devices, and T on 6: the search is near the best of
// all splits, and never behind even layers.
TEST(Partition, DevicesThatShareAPartOfTheirStagesAreBalanced) {
  for (const auto& [order, devices, microbatches] : {std::tuple(AmdpOrder::r, 3, 2),
                                                     {AmdpOrder::r, 5, 3},
                                                     {AmdpOrder::rounded_a, 5, 8},
                                                     {AmdpOrder::rounded_a, 6, 8},
                                                     {AmdpOrder::t, 6, 6}})
    for (const double head : {0.0, 1.5, 4.0}) {
      SCOPED_TRACE(testing::Message() << name_of(order) << " on " << devices << ", head " << head);
      GeneratorOptions options;
      options.devices = devices;
      options.microbatches = microbatches;
      options.asynchronous.order = order;
      const std::int64_t layers = 2 * devices + 1;
      const PartitionQuery query{
          generate_schedule("amdp", options).placement, layers, {1, 0.25, head}, {}, {}};
      const Layers dealt = best_partition(query);
      EXPECT_EQ(std::accumulate(dealt.begin(), dealt.end(), std::int64_t{0}), layers);
      for (int stage = 1; stage + 1 < devices; ++stage)
        EXPECT_GE(dealt[static_cast<std::size_t>(stage)], 1);
      const auto work_of = [&](const Layers& split) { return score(query, split).work; };
      EXPECT_LE(work_of(dealt), work_of(even_layers(layers, devices)));
      EXPECT_LE(work_of(dealt), 1.02 * best_by_trying(query)->work);
    }
}

// Whatever the split, what the formula says of a device is what the dry run says.
TEST(Partition, MemoryOfDevicesIsThatOfTheSplitModel) {
  for (const char* name : {"1f1b", "interleaved-1f1b", "zb-v", "v-half", "dualpipe", "seq1f1b"}) {
    SCOPED_TRACE(name);
    GeneratorOptions options;
    options.devices = 2;
    options.microbatches = 6;
    if (std::string(name) == "seq1f1b") options.slices = 2;
    RunPlan plan = test::plan_for({.family = ModelFamily::llama,
                                   .layers = 12,
                                   .dim = 32,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .ffn_dim = 96,
                                   .vocab_size = 500},
                                  validate(generate_schedule(name, options)).lowered, 64, 12);
    plan.mesh.tensor = 2;
    plan.mesh.shard = 2;
    plan.config.parallelism.deferred_validation = true;
    const std::vector<DeviceMemory> memory = memory_of_devices(plan);
    std::mt19937 random(3);
    for (int round = 0; round < 10; ++round) {
      for (std::int64_t& layers : plan.layers_per_stage)
        layers = 1 + static_cast<int>(random() % 5);
      plan.peak_stash_bytes.clear();
      for (const DeviceResult& device : simulate(plan.schedule, byte_costs(plan)).devices)
        plan.peak_stash_bytes.push_back(static_cast<std::int64_t>(device.peak_bytes));
      const std::vector<RankMemory> ranks = memory_by_rank(plan);
      ASSERT_EQ(ranks.size(), memory.size());
      for (std::size_t d = 0; d < memory.size(); ++d) {
        EXPECT_GT(ranks[d].reduction, 0);
        EXPECT_GT(ranks[d].rollback, 0);
        EXPECT_EQ(memory[d].bytes(ranks[d].layers), static_cast<double>(ranks[d].total()));
      }
    }
  }
}

TEST(PartTimes, CountedPartsAddUpToTheWork) {
  const ModelShape shape = {.family = ModelFamily::llama,
                            .layers = 2,
                            .dim = 32,
                            .heads = 4,
                            .kv_heads = 2,
                            .ffn_dim = 96,
                            .vocab_size = 500};
  for (const RecomputeLevel level :
       {RecomputeLevel::none, RecomputeLevel::mlp, RecomputeLevel::full}) {
    const PartTimes times = counted_part_times(shape, level, 64);
    EXPECT_NEAR(times.layer.f + times.layer.b, block_work(shape, level, 64), 1e-6);
    EXPECT_EQ(times.layer.b, times.layer.i + times.layer.w);
  }
  const PartTimes times = counted_part_times(shape, RecomputeLevel::none, 64);
  EXPECT_EQ(times.head.f + times.head.i + times.head.w, head_work(shape));
  EXPECT_EQ(times.embedding.f + times.embedding.b, 0);
}

// F of stages with 1, 2, 2 and 1 layers: 7, 8, 8 and 24. A layer takes 4, the embedding 3, the head
// 20.
TEST(PartTimes, AreTakenOutOfTheStagesOfAProfile) {
  Costs profile(4, 1);
  profile.layers = {1, 2, 2, 1};
  for (const auto& [stage, time] :
       {std::pair{0, 7}, std::pair{1, 8}, std::pair{2, 8}, std::pair{3, 24}})
    profile.at(stage, 0).f = profile.at(stage, 0).b = time;
  const PartTimes times = measured_part_times(profile, {});
  EXPECT_EQ(times.layer.f, 4);
  EXPECT_EQ(times.embedding.f, 3);
  EXPECT_EQ(times.head.f, 20);
  EXPECT_EQ(times.head.b, 20);

  // Of two stages the first is taken for layers alone.
  Costs two(2, 2);
  two.layers = {4, 2};
  two.at(0, 0).f = 5;
  two.at(0, 1).f = 7;
  two.at(1, 0).f = two.at(1, 1).f = 8;
  EXPECT_EQ(measured_part_times(two, {}).layer.f, 3);
  EXPECT_EQ(measured_part_times(two, {}).embedding.f, 0);
  EXPECT_EQ(measured_part_times(two, {}).head.f, 10);

  // Of one stage, as the counts say: 10 of 25 for the head.
  Costs one(1, 1);
  one.layers = {3};
  one.at(0, 0).f = 50;
  const PartTimes counted = {.layer = {.f = 5}, .embedding = {}, .head = {.f = 10}};
  EXPECT_EQ(measured_part_times(one, counted).head.f, 20);
  EXPECT_EQ(measured_part_times(one, counted).layer.f, 10);
  one.layers.clear();
  EXPECT_THROW(measured_part_times(one, counted), UserError);
}

// A shape of 8 billion weights with a vocabulary of 128 thousand, whose head works as much as three
// layers: the step gets a quarter shorter.
TEST(Partition, ALargeVocabularyNoLongerHoldsThePipelineUp) {
  ModelShape shape;
  shape.family = ModelFamily::llama;
  shape.layers = 32;
  shape.dim = 4096;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.ffn_dim = 14336;
  shape.vocab_size = 128256;
  const PartTimes times = counted_part_times(shape, RecomputeLevel::none, 4096);
  const PartWork work{.layer = times.layer.f + times.layer.b, .head = head_work(shape)};
  const auto makespan = [&](const Schedule& schedule, const Layers& layers) {
    RunPlan plan = test::plan_for(shape, schedule, 4096, schedule.num_microbatches);
    plan.layers_per_stage = layers;
    return simulate(schedule, costs_of_parts(times, plan)).makespan;
  };
  const auto ratio = [&](const char* name) {
    GeneratorOptions options;
    options.devices = 8;
    options.microbatches = 32;
    const Schedule schedule = generate_schedule(name, options);
    return makespan(schedule, best_partition({schedule.placement, 32, work, {}, {}})) /
           makespan(schedule, even_layers(32, schedule.num_stages()));
  };
  EXPECT_NEAR(work.head / work.layer, 2.95, 0.01);
  EXPECT_NEAR(ratio("1f1b"), 0.75, 0.01);
  EXPECT_NEAR(ratio("v-half"), 0.75, 0.01);
  EXPECT_NEAR(ratio("zb-v"), 0.74, 0.01);
}

TEST(Partition, TooFewLayersAreRefused) {
  EXPECT_EQ(best_partition({Placement::linear(4), 2, {}, {}, {}}), (Layers{0, 1, 1, 0}));
  EXPECT_THROW(best_partition({Placement::linear(4), 1, {}, {}, {}}), UserError);
}

}  // namespace
}  // namespace sluice
