// Packed documents and masked tokens through real training over threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/trained.h"
#include "sluice/runtime/batches.h"

namespace sluice {
namespace {

using test::Case;
using test::expect_close_gradients;
using test::expect_equal_bits;
using test::shape_of;
using test::train;
using test::Trained;
using test::TrainOptions;

// Documents of 1 to 11 tokens, so that a sequence holds several and most are cut somewhere.
std::shared_ptr<const TokenSource> short_documents() {
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t n = 0; starts.back() < 4000; ++n)
    starts.push_back(std::min<std::int64_t>(4000, starts.back() + 1 + (n * 7919) % 11));
  return test::tokens(starts);
}

std::shared_ptr<const TokenSource> documents_of(std::int64_t length) {
  std::vector<std::int64_t> starts(static_cast<std::size_t>(4000 / length) + 1);
  for (std::size_t n = 0; n < starts.size(); ++n)
    starts[n] = static_cast<std::int64_t>(n) * length;
  starts.back() = 4000;
  return test::tokens(starts);
}

TrainOptions packed(std::shared_ptr<const TokenSource> source, int steps) {
  TrainOptions options;
  options.steps = steps;
  options.source = std::move(source);
  options.data.packing = Packing::documents;
  return options;
}

ModelShape with_positions(ModelFamily family, std::int64_t positions) {
  ModelShape shape = shape_of(family, false);
  if (family != ModelFamily::llama) shape.positions = positions;
  return shape;
}

TEST(Packing, AMicrobatchKnowsItsDocuments) {
  DatasetOptions options{.sequence_length = 16, .vocab_size = 64};
  EXPECT_TRUE(load_batch(Dataset(short_documents(), options), {0, 4}, 2)
                  .microbatches[1]
                  .documents.single());
  options.packing = Packing::documents;
  const Dataset data(short_documents(), options);
  const GlobalBatch batch = load_batch(data, {4, 4}, 2);
  std::int64_t targets = 0;
  for (std::int64_t n = 0; n < 4; ++n) {
    const Sample sample = data.sample(4 + n);
    const auto& starts = batch.microbatches[static_cast<std::size_t>(n / 2)]
                             .documents.starts[static_cast<std::size_t>(n % 2)];
    EXPECT_GT(starts.size(), 1u);
    EXPECT_TRUE(std::equal(starts.begin(), starts.end(), sample.segment_starts.begin(),
                           sample.segment_starts.end()));
    targets += sample.num_targets();
  }
  EXPECT_EQ(batch.num_targets, targets);
}

// Sixteen documents of 16 tokens, once as 16 sequences and once as 4 packed sequences of 64.
TEST(Packing, PackedDocumentsGiveTheGradientOfSeparateOnes) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const ModelShape shape = with_positions(family, 64);
    TrainOptions separate = packed(documents_of(16), 5);
    separate.data.shuffle = false;
    separate.optimizer = OptimizerKind::sgd;
    TrainOptions together = separate;
    together.data.sequence_length = 64;
    together.global_batch_size = 4;
    together.microbatches = 4;
    const Trained apart = train({"1f1b", 1}, shape, separate);
    for (const Case& c : {Case{"1f1b", 1}, Case{"v-half", 2}, Case{"seq1f1b", 2, 2}}) {
      SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
      const Trained one = train(c, shape, together);
      expect_close_gradients(one.first_gradients, apart.first_gradients, 1e-5);
      for (std::size_t n = 0; n < apart.losses.size(); ++n)
        EXPECT_NEAR(one.losses[n], apart.losses[n], 1e-5);
    }
  }
}

TEST(Packing, DocumentsMakeADifference) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  TrainOptions stream = packed(short_documents(), 1);
  stream.data.packing = Packing::stream;
  EXPECT_NE(train({"1f1b", 1}, shape, stream).losses,
            train({"1f1b", 1}, shape, packed(short_documents(), 1)).losses);
}

TEST(Packing, TheScheduleChangesNoBit) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const ModelShape shape = shape_of(family, false);
    const TrainOptions options = packed(short_documents(), 3);
    const Trained reference = train({"1f1b", 1}, shape, options);
    for (const Case& c : {Case{"gpipe", 4}, Case{"zb-h1", 4}, Case{"zb-v", 2}, Case{"v-half", 2},
                          Case{"interleaved-1f1b", 4}}) {
      SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
      expect_equal_bits(train(c, shape, options), reference);
    }
  }
}

TEST(Packing, SlicedSchedulesAgreeAmongThemselvesAndWithWholeOnesToRounding) {
  const ModelShape shape = shape_of(ModelFamily::llama, false);
  TrainOptions options = packed(short_documents(), 3);
  options.optimizer = OptimizerKind::sgd;
  const Trained whole = train({"1f1b", 1}, shape, options);
  const Trained sliced = train({"seq1f1b", 1, 4}, shape, options);
  for (const Case& c : {Case{"seq1f1b", 4, 4}, Case{"seq-zb", 4, 4}, Case{"zb-v", 2, 4}}) {
    SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
    expect_equal_bits(train(c, shape, options), sliced);
  }
  expect_close_gradients(sliced.first_gradients, whole.first_gradients, 1e-5);
  for (std::size_t n = 0; n < whole.losses.size(); ++n)
    EXPECT_NEAR(sliced.losses[n], whole.losses[n], 1e-5);
}

// Each slice is one document, of which no key lies in an earlier slice.
TEST(Packing, SlicesMayCutWhereDocumentsDo) {
  const ModelShape shape = with_positions(ModelFamily::gpt2, 64);
  TrainOptions options = packed(documents_of(32), 1);
  options.data.shuffle = false;
  options.data.sequence_length = 64;
  options.global_batch_size = 4;
  options.microbatches = 4;
  expect_close_gradients(train({"seq1f1b", 2, 2}, shape, options).first_gradients,
                         train({"1f1b", 1}, shape, options).first_gradients, 1e-5);
}

// Documents of one token have nothing to guess: a batch without any, then one with.
TEST(Packing, AMicrobatchWithoutTargetsCountsForNothing) {
  std::vector<std::int64_t> starts(33);
  std::iota(starts.begin(), starts.end(), 0);  // two sequences of such documents, then one long one
  starts.push_back(4000);
  TrainOptions options = packed(test::tokens(starts), 1);
  options.data.shuffle = false;
  const Dataset data(options.source, options.data);
  const GlobalBatch batch = load_batch(data, {0, 16}, 8);
  EXPECT_EQ(batch.num_targets, 14 * 16);
  EXPECT_TRUE(batch.microbatches[0].targets.eq(kNoTarget).all().item<bool>());

  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  const Trained with = train({"v-half", 2}, shape, options);
  // The same without that microbatch: the long document alone.
  std::vector<std::int32_t> rest(4000 - 32);
  options.source->read(32, rest);
  options.source = memory_source(rest, {0, 4000 - 32});
  options.global_batch_size = 14;
  options.microbatches = 7;
  const Trained without = train({"v-half", 2}, shape, options);
  EXPECT_NEAR(with.losses[0], without.losses[0], 1e-6);
  expect_close_gradients(with.first_gradients, without.first_gradients, 1e-6);
}

TEST(Packing, AStepWithoutTargetsHasNoLossAndNoGradient) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  TrainOptions options = packed(documents_of(1), 1);
  const Trained trained = train({"v-half", 2}, shape, options);
  EXPECT_EQ(trained.losses, std::vector<double>{0});
  EXPECT_EQ(trained.norms, std::vector<double>{0});
  options.steps = 0;
  const Trained fresh = train({"v-half", 2}, shape, options);
  // Half of the peak 0.01 in the first of two warm-up steps, and a weight decay of 0.1.
  const OptimizerConfig defaults;
  const double kept = 1 - 0.005 * defaults.weight_decay;
  for (const auto& [name, weight] : trained.weights) {
    const bool decays = weight.dim() == 2;
    EXPECT_TRUE(at::allclose(weight, fresh.weights.at(name) * (decays ? kept : 1.0), 1e-6, 0))
        << name;
  }
}

}  // namespace
}  // namespace sluice
