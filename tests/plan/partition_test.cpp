#include "plan/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "cost/model_costs.h"
#include "schedule/generators/generator.h"
#include "sim/simulate.h"

namespace sluice {
namespace {

using Layers = std::vector<std::int64_t>;

double busiest(const Placement& placement, const Layers& layers, const PartWork& work) {
  std::vector<double> load(static_cast<std::size_t>(placement.num_devices()), 0);
  for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
    for (int stage = 0; stage < placement.num_stages(); ++stage) {
      double own = static_cast<double>(layers[static_cast<std::size_t>(stage)]) * work.layer;
      if (stage == 0) own += work.embedding;
      if (stage + 1 == placement.num_stages()) own += work.head;
      load[static_cast<std::size_t>(placement.device_of(pipe, stage))] +=
          own / placement.num_pipes();
    }
  return *std::max_element(load.begin(), load.end());
}

// Every way to deal the layers.
double best_by_trying(const Placement& placement, std::int64_t layers, const PartWork& work) {
  const auto stages = static_cast<std::size_t>(placement.num_stages());
  double best = 1e300;
  Layers dealt(stages, 0);
  const std::function<void(std::size_t, std::int64_t)> deal = [&](std::size_t stage,
                                                                  std::int64_t left) {
    if (stage + 1 == stages) {
      dealt[stage] = left;
      best = std::min(best, busiest(placement, dealt, work));
      return;
    }
    for (std::int64_t n = stage == 0 ? 0 : 1; n <= left; ++n) {
      dealt[stage] = n;
      deal(stage + 1, left - n);
    }
  };
  deal(0, layers);
  return best;
}

TEST(Partition, IsTheBestOfAllWaysToDeal) {
  int tried = 0;
  for (const Placement& placement :
       {Placement::linear(1), Placement::linear(2), Placement::linear(4), Placement::looped(2, 2),
        Placement::looped(2, 3), Placement::vee(2, 2), Placement::vee(3, 2), Placement::mirrored(2),
        Placement::mirrored(4), Placement::custom(2, {{0, 1, 1, 0, 0}})})
    for (const PartWork& work : {PartWork{1, 0, 0}, PartWork{1, 0, 2.5}, PartWork{2, 0, 1},
                                 PartWork{1, 0.75, 0.5}, PartWork{1, 0, 30}, PartWork{3, 5, 4}})
      for (std::int64_t layers = std::max(placement.num_stages() - 2, 1); layers <= 11; ++layers) {
        const Layers dealt = layers_by_work(placement, layers, work);
        SCOPED_TRACE(testing::Message() << placement.num_stages() << " stages, " << layers
                                        << " layers, head " << work.head);
        EXPECT_EQ(std::accumulate(dealt.begin(), dealt.end(), std::int64_t{0}), layers);
        for (std::size_t stage = 1; stage + 1 < dealt.size(); ++stage)
          EXPECT_GE(dealt[stage], 1);
        EXPECT_NEAR(busiest(placement, dealt, work), best_by_trying(placement, layers, work), 1e-9);
        ++tried;
      }
  EXPECT_GT(tried, 500);
}

TEST(Partition, EqualWorkIsDealtEvenly) {
  EXPECT_EQ(layers_by_work(Placement::linear(4), 8, {}), (Layers{2, 2, 2, 2}));
  EXPECT_EQ(layers_by_work(Placement::vee(2, 2), 8, {}), (Layers{2, 2, 2, 2}));
}

TEST(Partition, ALargeHeadStandsAlone) {
  EXPECT_EQ(layers_by_work(Placement::linear(4), 9, {1, 0, 3}), (Layers{3, 3, 3, 0}));
  EXPECT_EQ(layers_by_work(Placement::linear(4), 9, {1, 0, 100}), (Layers{3, 3, 3, 0}));
}

TEST(Partition, StagesOfADeviceTakeAsLongAsEachOther) {
  // Device 0 holds the first and the last stage; the head works as much as three layers.
  EXPECT_EQ(layers_by_work(Placement::vee(2, 2), 13, {1, 0, 3}), (Layers{4, 4, 4, 1}));
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
  const PartWork work{.layer = block_work(shape, RecomputeLevel::none, 4096),
                      .head = head_work(shape)};
  const auto makespan = [&](const Schedule& schedule, const Layers& layers) {
    std::vector<OpCosts> table;
    for (std::size_t stage = 0; stage < layers.size(); ++stage) {
      OpCosts costs;
      costs.f = costs.i = costs.w = static_cast<double>(layers[stage]) * work.layer / 3;
      if (stage + 1 == layers.size()) {  // the head's I has nothing left to do
        costs.f += work.head / 2;
        costs.w += work.head / 2;
      }
      costs.b = costs.i + costs.w;
      table.push_back(costs);
    }
    return simulate(schedule, Costs(schedule.num_stages(), 1, std::move(table))).makespan;
  };
  const auto ratio = [&](const char* name) {
    GeneratorOptions options;
    options.devices = 8;
    options.microbatches = 32;
    const Schedule schedule = generate_schedule(name, options);
    const auto stages = static_cast<std::size_t>(schedule.num_stages());
    const Layers even(stages, 32 / schedule.num_stages());
    return makespan(schedule, layers_by_work(schedule.placement, 32, work)) /
           makespan(schedule, even);
  };
  EXPECT_NEAR(work.head / work.layer, 2.95, 0.01);
  EXPECT_NEAR(ratio("1f1b"), 0.75, 0.01);
  EXPECT_NEAR(ratio("v-half"), 0.75, 0.01);
  EXPECT_NEAR(ratio("zb-v"), 0.74, 0.01);
}

TEST(Partition, TooFewLayersAreRefused) {
  EXPECT_EQ(layers_by_work(Placement::linear(4), 2, {}), (Layers{0, 1, 1, 0}));
  EXPECT_THROW(layers_by_work(Placement::linear(4), 1, {}), UserError);
}

}  // namespace
}  // namespace sluice
