// Training on sequences of unequal lengths, over threads: whatever the schedule and the mesh, it is
// the serial run over the same sequences, and it keeps the bytes that the step's plan says.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "runtime/trained.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/run/batch_plan.h"
#include "sluice/run/op_costs.h"
#include "sluice/runtime/batches.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

using test::Case;
using test::expect_close_gradients;
using test::expect_equal_bits;
using test::shape_of;
using test::train;
using test::Trained;
using test::TrainOptions;

constexpr ModelFamily kFamilies[] = {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert};

// Documents of 1 to 16 tokens, most of them short.
std::shared_ptr<const TokenSource> unequal_documents() {
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t n = 0; starts.back() < 4000; ++n)
    starts.push_back(
        std::min<std::int64_t>(4000, starts.back() + 1 + (n * 7919) % (n % 5 == 0 ? 16 : 6)));
  return test::tokens(starts);
}

std::shared_ptr<const TokenSource> documents_of(std::int64_t length) {
  std::vector<std::int64_t> starts;
  for (std::int64_t start = 0; start <= 4000; start += length)
    starts.push_back(start);
  return test::tokens(starts);
}

// 11 sequences, which nothing divides.
TrainOptions unequal(ModelFamily family, int steps) {
  TrainOptions options;
  options.steps = steps;
  options.source = unequal_documents();
  options.data.packing = Packing::sequences;
  if (family == ModelFamily::bert)
    options.data.masks = MaskOptions{.seed = 3, .mask_token = 65, .num_ordinary = 64};
  options.data.vocab_size = 66;
  options.global_batch_size = 11;
  options.microbatches = 3;
  options.optimizer = OptimizerKind::sgd;
  return options;
}

// Four heads, and in Llama two for keys and values; all divides among two tensor ranks.
ModelShape divisible(ModelFamily family) {
  ModelShape shape = shape_of(family, false);
  shape.dim = 32;
  shape.heads = 4;
  shape.kv_heads = family == ModelFamily::llama ? 2 : 4;
  shape.vocab_size = 66;
  return shape;
}

// One rank, one microbatch.
Trained serial_run(const ModelShape& shape, TrainOptions options) {
  options.microbatches = 1;
  options.mesh = {};
  options.sequence_norms = false;
  return train({"1f1b", 1}, shape, options);
}

void expect_same(const Trained& ours, const Trained& serial) {
  ASSERT_EQ(ours.losses.size(), serial.losses.size());
  for (std::size_t n = 0; n < serial.losses.size(); ++n) {
    EXPECT_NEAR(ours.losses[n], serial.losses[n], 1e-6 * serial.losses[n]);
    EXPECT_NEAR(ours.norms[n], serial.norms[n], 1e-5 * serial.norms[n]);
  }
  expect_close_gradients(ours.first_gradients, serial.first_gradients, 1e-5);
  for (const auto& [name, weight] : serial.weights)
    EXPECT_TRUE(at::allclose(ours.weights.at(name), weight, 1e-4, 1e-6)) << name;
}

TEST(UnequalSequences, AMicrobatchIsARowOfWholeSequencesOfItsRank) {
  TrainOptions options = unequal(ModelFamily::gpt2, 1);
  const Dataset data(options.source, options.data);
  const std::int64_t first = data.num_samples() - 5;  // a batch of two epochs
  std::map<std::vector<std::int64_t>, int> wanted, found;
  std::int64_t tokens = 0, targets = 0;
  double squares = 0;
  for (std::int64_t n = first; n < first + 11; ++n) {
    const Sample sample = data.sample(n);
    ++wanted[{sample.tokens.begin(), sample.tokens.end()}];
    const std::int64_t length = std::ssize(sample.tokens);
    tokens += length;
    targets += length - 1;
    squares += static_cast<double>(length * length);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const GlobalBatch batch = load_sequences(
        data, {first, 11}, deal_longest_first(data.lengths(first, first + 11), 3, 2), {rank, 4});
    EXPECT_EQ(batch.num_tokens, tokens);
    EXPECT_EQ(batch.num_targets, targets);
    EXPECT_EQ(batch.squared_lengths, squares);
    ASSERT_EQ(batch.microbatches.size(), 3u);
    for (const Microbatch& microbatch : batch.microbatches) {
      const std::int64_t padded = microbatch.tokens.size(1);
      ASSERT_EQ(microbatch.tokens.size(0), 1);
      EXPECT_EQ(padded % 4, 0);
      std::vector<std::int64_t> starts = microbatch.documents.starts[0];
      starts.push_back(padded);
      for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
        const at::Tensor row = microbatch.tokens[0].slice(0, starts[d], starts[d + 1]);
        const at::Tensor to = microbatch.targets[0].slice(0, starts[d], starts[d + 1]);
        const auto* begin = row.const_data_ptr<std::int64_t>();
        const std::vector<std::int64_t> document(begin, begin + row.numel());
        if (wanted.contains(document)) {
          ++found[document];
          EXPECT_TRUE(at::equal(to.slice(0, 0, -1), row.slice(0, 1)));
          EXPECT_EQ(to[-1].item<std::int64_t>(), kNoTarget);
        } else {  // the padding
          EXPECT_EQ(d + 2, starts.size());
          EXPECT_LT(row.numel(), 4);
          EXPECT_TRUE(to.eq(kNoTarget).all().item<bool>());
        }
      }
    }
  }
  EXPECT_EQ(found, wanted);
}

TEST(UnequalSequences, EverySchedulesStepsAreThoseOfTheSerialRun) {
  for (const ModelFamily family : kFamilies) {
    const ModelShape shape = divisible(family);
    const TrainOptions options = unequal(family, 3);
    const Trained serial = serial_run(shape, options);
    const Trained pieces = train({"1f1b", 1}, shape, options);
    expect_same(pieces, serial);
    for (const Case& c : {Case{"1f1b", 4}, Case{"gpipe", 4}, Case{"zb-h1", 4}, Case{"zb-v", 2},
                          Case{"v-half", 4}, Case{"interleaved-1f1b", 2}}) {
      SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
      TrainOptions here = options;
      if (c.schedule == "interleaved-1f1b") here.microbatches = 4;
      const Trained ours = train(c, shape, here);
      expect_same(ours, serial);
      if (here.microbatches == options.microbatches) expect_equal_bits(ours, pieces);
    }
    // Two pipes take an even number of microbatches.
    TrainOptions even = options;
    even.microbatches = 4;
    expect_same(train({"dualpipe", 2}, shape, even), serial);
    expect_same(train({"dualpipe-v", 2}, shape, even), serial);
  }
}

TEST(UnequalSequences, EveryMeshsStepsAreThoseOfTheSerialRun) {
  struct Where {
    Case c;
    MeshShape mesh;
    bool sequence_norms = false, scatter = true;
  };
  const Where places[] = {
      {{"1f1b", 1}, {.shard = 2}},          {{"1f1b", 1}, {.replicate = 3}},
      {{"zb-v", 2}, {.replicate = 2}},      {{"v-half", 2}, {.replicate = 2, .shard = 2}},
      {{"1f1b", 1}, {.tensor = 2}},         {{"1f1b", 1}, {.tensor = 2}, true},
      {{"zb-v", 2}, {.tensor = 2}},         {{"zb-v", 2}, {.tensor = 2}, false, false},
      {{"v-half", 2}, {.tensor = 2}, true}, {{"1f1b", 2}, {.shard = 2, .tensor = 2}, true}};
  for (const ModelFamily family : kFamilies) {
    const ModelShape shape = divisible(family);
    const TrainOptions options = unequal(family, 3);
    const Trained serial = serial_run(shape, options);
    for (const Where& where : places) {
      SCOPED_TRACE(testing::Message() << where.c.schedule << " on " << where.mesh.replicate << " x "
                                      << where.mesh.shard << " x " << where.c.devices << " x "
                                      << where.mesh.tensor << ", " << where.sequence_norms);
      TrainOptions here = options;
      here.mesh = where.mesh;
      here.sequence_norms = where.sequence_norms;
      here.scatter = where.scatter;
      expect_same(train(where.c, shape, here), serial);
    }
  }
}

// Three sequences for two data ranks with three microbatches each.
TEST(UnequalSequences, ARankWithoutTokensWaitsForNobody) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const ModelShape shape = divisible(family);
    TrainOptions options = unequal(family, 2);
    options.global_batch_size = 3;
    const Trained serial = serial_run(shape, options);
    for (const auto& [c, mesh, norms] :
         {std::tuple(Case{"1f1b", 2}, MeshShape{.shard = 2}, false),
          std::tuple(Case{"zb-v", 2}, MeshShape{.replicate = 2}, false),
          std::tuple(Case{"gpipe", 2}, MeshShape{.shard = 2, .tensor = 2}, false),
          std::tuple(Case{"v-half", 2}, MeshShape{.replicate = 2, .tensor = 2}, true),
          std::tuple(Case{"1f1b", 1}, MeshShape{.replicate = 5}, false)}) {
      SCOPED_TRACE(testing::Message() << c.schedule << " on " << mesh.data());
      options.mesh = mesh;
      options.sequence_norms = norms;
      expect_same(train(c, shape, options), serial);
      options.deferred = true;  // drops and repeats forwards without tokens
      expect_same(train(c, shape, options), serial);
      options.deferred = false;
    }
  }
}

TEST(UnequalSequences, DeferredValidationChangesNoBit) {
  const ModelShape shape = divisible(ModelFamily::llama);
  TrainOptions options = unequal(ModelFamily::llama, 5);
  options.mesh = {.replicate = 2};
  for (const double max_norm : {0.5, 1e9}) {  // always and never clipped
    options.max_norm = max_norm;
    options.deferred = false;
    const Trained sync = train({"zb-v", 2}, shape, options);
    options.deferred = true;
    expect_equal_bits(train({"zb-v", 2}, shape, options), sync);
  }
}

TEST(UnequalSequences, ABatchOfSingleTokensHasNoLossAndNoGradient) {
  const ModelShape shape = divisible(ModelFamily::gpt2);
  TrainOptions options = unequal(ModelFamily::gpt2, 2);
  options.source = documents_of(1);
  options.mesh = {.shard = 2};
  const Trained trained = train({"zb-v", 2}, shape, options);
  EXPECT_EQ(trained.losses, (std::vector<double>{0, 0}));
  EXPECT_EQ(trained.norms, (std::vector<double>{0, 0}));
  for (const auto& [name, weight] : trained.weights)
    EXPECT_TRUE(weight.isfinite().all().item<bool>()) << name;
}

TEST(UnequalSequences, OfOneLengthGiveTheGradientOfPackedDocuments) {
  const ModelShape shape = divisible(ModelFamily::llama);
  TrainOptions apart = unequal(ModelFamily::llama, 2);
  apart.source = documents_of(8);
  apart.data.shuffle = false;
  apart.global_batch_size = 16;
  TrainOptions packed = apart;
  packed.data.packing = Packing::documents;
  packed.global_batch_size = 8;  // of 16 tokens, with two documents each
  packed.microbatches = 4;
  expect_same(train({"v-half", 2}, shape, apart), train({"1f1b", 1}, shape, packed));
}

TEST(UnequalSequences, RecomputationChangesNoBit) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const ModelShape shape = divisible(family);
    TrainOptions options = unequal(family, 2);
    options.mesh = {.replicate = 2};
    const Trained plain = train({"zb-v", 2}, shape, options);
    for (const RecomputeLevel level :
         {RecomputeLevel::mlp, RecomputeLevel::all_but_attention, RecomputeLevel::full}) {
      options.level = level;
      expect_equal_bits(train({"zb-v", 2}, shape, options), plain);
    }
  }
}

// What the first step of every rank keeps, sends and holds between stages, against the simulation
// of that very batch.
TEST(UnequalSequences, TheLedgerIsThePredictionOfTheStepToTheByte) {
  struct Where {
    Case c;
    MeshShape mesh = {};
    bool sequence_norms = false;
    std::int64_t batch = 11;
  };
  for (const ModelFamily family : kFamilies)
    for (const RecomputeLevel level :
         {RecomputeLevel::none, RecomputeLevel::mlp, RecomputeLevel::full})
      for (const Where& where :
           {Where{{"1f1b", 4}}, Where{{"gpipe", 2}}, Where{{"interleaved-1f1b", 2}},
            Where{{"zb-v", 2}, {.replicate = 2}}, Where{{"v-half", 2}, {.tensor = 2}, true},
            Where{{"1f1b", 2}, {.shard = 2, .tensor = 2}},
            Where{{"zb-v", 2}, {.replicate = 2}, false, 3}}) {
        SCOPED_TRACE(testing::Message() << where.c.schedule << " on " << where.mesh.data() << " x "
                                        << where.c.devices << " x " << where.mesh.tensor);
        TrainOptions options = unequal(family, 1);
        options.microbatches = 4;
        options.level = level;
        options.mesh = where.mesh;
        options.sequence_norms = where.sequence_norms;
        options.global_batch_size = where.batch;
        const ModelShape shape = divisible(family);
        const Trained trained = train(where.c, shape, options);
        RunPlan plan = test::plan_of(where.c, shape, options);
        const auto most = simulate(plan.schedule, byte_costs(plan)).devices;
        const Dataset data(options.source, options.data);
        const std::vector<std::int64_t> lengths = data.lengths(0, where.batch);
        const BatchPlan dealt = deal_longest_first(lengths, 4, plan.mesh.data());
        for (int rank = 0; rank < plan.mesh.size(); ++rank) {
          const MeshPlace place = place_of(rank, plan.mesh);
          plan.shares = token_shares(dealt, lengths, place.data, plan.mesh.tensor);
          const auto device = static_cast<std::size_t>(place.pipeline);
          const auto bytes = trained.peaks[static_cast<std::size_t>(rank)];
          EXPECT_EQ(static_cast<double>(bytes),
                    simulate(plan.schedule, byte_costs(plan)).devices[device].peak_bytes)
              << "rank " << rank;
          EXPECT_LE(static_cast<double>(bytes), most[device].peak_bytes);
        }
      }
}

// The same sequences in another order within their batch fall to other microbatches and ranks.
TEST(UnequalSequences, HowTheyAreDealtChangesTheLossByRoundingOnly) {
  const ModelShape shape = divisible(ModelFamily::llama);
  TrainOptions options = unequal(ModelFamily::llama, 1);
  options.data.shuffle = false;
  const Dataset data(options.source, options.data);
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t n = 10; n >= 0; --n) {
    const Sample sample = data.sample(n);
    tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
    starts.push_back(std::ssize(tokens));
  }
  TrainOptions reversed = options;
  reversed.source = memory_source(std::move(tokens), std::move(starts));
  const Dataset other(reversed.source, reversed.data);
  const auto rows = [](const Dataset& of) {
    return deal_longest_first(of.lengths(0, 11), 3, 2).microbatches;
  };
  ASSERT_NE(rows(data), rows(other));
  options.mesh = reversed.mesh = {.replicate = 2};
  const Trained one = train({"zb-v", 2}, shape, options);
  const Trained two = train({"zb-v", 2}, shape, reversed);
  EXPECT_NEAR(one.losses[0], two.losses[0], 1e-6);
  expect_close_gradients(one.first_gradients, two.first_gradients, 1e-5);
}

TEST(UnequalSequences, EvaluationDoesNotDependOnHowTheyAreDealt) {
  struct Deal {
    Case c;
    std::int64_t batch;
    int microbatches;
    MeshShape mesh = {};
  };
  for (const ModelFamily family : kFamilies) {
    TrainOptions options = unequal(family, 0);
    options.data.shuffle = false;
    const Dataset data(options.source, options.data);
    const auto evaluated = [&](const Deal& deal, std::int64_t samples) {
      options.global_batch_size = deal.batch;
      options.microbatches = deal.microbatches;
      options.mesh = deal.mesh;
      const RunPlan plan = test::plan_of(deal.c, divisible(family), options);
      double loss = 0;
      run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
        at::set_num_threads(1);
        const double here = Trainer(plan, data, world).evaluate(data, samples);
        if (world.rank() == world.size() - 1) loss = here;
      });
      return loss;
    };
    for (const std::int64_t samples : {37, 61}) {
      const double one_by_one = evaluated({{"1f1b", 1}, 1, 1}, samples);
      EXPECT_NEAR(one_by_one, std::log(66), 0.3);
      // The last batch has a single sequence, for up to six places.
      for (const Deal& deal : {Deal{{"1f1b", 1}, 12, 2}, Deal{{"zb-v", 2}, 36, 3},
                               Deal{{"v-half", 2}, 12, 3, {.replicate = 2}},
                               Deal{{"1f1b", 2}, 18, 3, {.shard = 2, .tensor = 2}}})
        EXPECT_NEAR(evaluated(deal, samples), one_by_one, 1e-6)
            << deal.batch << " in " << deal.microbatches;
    }
  }
}

}  // namespace
}  // namespace sluice
