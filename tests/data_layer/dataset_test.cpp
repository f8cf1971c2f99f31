#include "sluice/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "sluice/data/indexed.h"
#include "sluice/data/masking.h"
#include "sluice/data/tokenizer.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Ints = std::vector<std::int32_t>;

// Tokens 0, 1, 2, ...: each one says where it came from.
std::shared_ptr<const TokenSource> counting(std::int64_t count,
                                            std::vector<std::int64_t> starts = {}) {
  Ints tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  if (starts.empty()) starts = {0, count};
  return memory_source(std::move(tokens), std::move(starts), "corpus");
}

DatasetOptions ordered(std::int64_t length) {
  return {.sequence_length = length, .vocab_size = 1 << 20, .shuffle = false};
}

std::pair<ExitCode, std::string> error_of(std::shared_ptr<const TokenSource> source,
                                          const DatasetOptions& options) {
  try {
    Dataset(std::move(source), options).sample(0);
  } catch (const UserError& error) {
    return {error.code(), error.what()};
  }
  return {ExitCode::ok, "no error"};
}

TEST(Dataset, PlainNeighboursShareOneToken) {
  const Dataset data(counting(11, {0, 5, 11}), ordered(4));
  EXPECT_EQ(data.num_samples(), 2);
  EXPECT_EQ(data.sample(0), (Sample{{0, 1, 2, 3}, {1, 2, 3, 4}, {0}}));
  EXPECT_EQ(data.sample(1), (Sample{{4, 5, 6, 7}, {5, 6, 7, 8}, {0}}));
  EXPECT_EQ(data.sample(2), data.sample(0));  // the next epoch
  EXPECT_EQ(Dataset(counting(9), ordered(4)).num_samples(), 2);
  EXPECT_EQ(Dataset(counting(8), ordered(4)).num_samples(), 1);
}

TEST(Dataset, PackedDocumentsKeepApart) {
  // Documents [0,3) [3,3) [3,4) [4,9) [9,13): boundaries inside, at the end and after a window.
  DatasetOptions options = ordered(4);
  options.packing = Packing::documents;
  const Dataset data(counting(13, {0, 3, 3, 4, 9, 13}), options);
  ASSERT_EQ(data.num_samples(), 3);
  EXPECT_EQ(data.longest_document(), 4);  // that of 5 tokens is cut
  EXPECT_EQ(Dataset(counting(13, {0, 3, 13}), ordered(4)).longest_document(), 0);
  EXPECT_EQ(data.sample(0), (Sample{{0, 1, 2, 3}, {1, 2, -1, -1}, {0, 3}}));
  EXPECT_EQ(data.sample(1), (Sample{{4, 5, 6, 7}, {5, 6, 7, 8}, {0}}));
  EXPECT_EQ(data.sample(2), (Sample{{8, 9, 10, 11}, {-1, 10, 11, 12}, {0, 1}}));
  EXPECT_EQ(data.sample(0).num_targets(), 2);
}

TEST(Dataset, PackedSegmentsAreThePiecesOfDocumentsWhereverTheyFall) {
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t d = 0; starts.back() < 2000; ++d)
    starts.push_back(starts.back() + (d * 7919) % 23);
  const std::int64_t total = starts.back();
  const auto document_of = [&](std::int64_t token) {
    return std::upper_bound(starts.begin(), starts.end(), token) - starts.begin();
  };
  DatasetOptions options = ordered(32);
  options.packing = Packing::documents;
  const Dataset data(counting(total, starts), options);
  for (std::int64_t n = 0; n < data.num_samples(); ++n) {
    const Sample sample = data.sample(n);
    const std::set<std::int32_t> segments(sample.segment_starts.begin(),
                                          sample.segment_starts.end());
    for (std::size_t j = 0; j < sample.tokens.size(); ++j) {
      const std::int64_t token = sample.tokens[j];
      const bool last = document_of(token) != document_of(token + 1);
      EXPECT_EQ(sample.targets[j], last ? kNoTarget : token + 1);
      const bool first = j == 0 || document_of(token - 1) != document_of(token);
      EXPECT_EQ(segments.contains(static_cast<std::int32_t>(j)), first) << n << " " << j;
    }
  }
}

TEST(Dataset, NoTokenOfTheValidationIsInTheTraining) {
  for (const double fraction : {0.1, 0.25, 0.5, 0.33}) {
    DatasetOptions options = ordered(8);
    options.validation_fraction = fraction;
    options.shuffle = true;
    const auto source = counting(1003, {0, 400, 950, 1003});
    const auto tokens_of = [&](Split split) {
      options.split = split;
      const Dataset data(source, options);
      std::set<std::int32_t> tokens;
      for (std::int64_t n = 0; n < data.num_samples(); ++n) {
        const Sample sample = data.sample(n);
        tokens.insert(sample.tokens.begin(), sample.tokens.end());
        tokens.insert(sample.targets.begin(), sample.targets.end());
      }
      EXPECT_GT(static_cast<std::int64_t>(tokens.size()), data.num_tokens() - 8);
      return tokens;
    };
    const auto training = tokens_of(Split::train), validation = tokens_of(Split::validation);
    EXPECT_LT(*training.rbegin(), *validation.begin());
    EXPECT_EQ(*validation.begin(), 1003 - static_cast<int>(1003 * fraction));
  }
}

TEST(Dataset, AnEpochShowsEachSampleOnceAndTheNextInAnotherOrder) {
  DatasetOptions options = ordered(10);
  options.shuffle = true;
  options.seed = 7;
  const Dataset data(counting(1001), options);
  ASSERT_EQ(data.num_samples(), 100);
  const auto epoch = [&](std::int64_t number) {
    Ints firsts;
    for (std::int64_t n = 0; n < 100; ++n)
      firsts.push_back(data.sample(number * 100 + n).tokens.front());
    return firsts;
  };
  const Ints first = epoch(0), second = epoch(1);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<std::int32_t>(first.begin(), first.end()).size(), 100u);
  EXPECT_EQ(std::set<std::int32_t>(second.begin(), second.end()).size(), 100u);
  EXPECT_EQ(data.epoch_of(199), 1);
}

TEST(Dataset, ResumesFromAnIndexAlone) {
  DatasetOptions options = ordered(10);
  options.shuffle = true;
  options.seed = 7;
  const Dataset first(counting(1001), options);
  std::vector<Sample> run;
  for (std::int64_t n = 0; n < 250; ++n)
    run.push_back(first.sample(n));
  const Dataset resumed(counting(1001), options);
  for (std::int64_t n = 249; n >= 137; --n)
    EXPECT_EQ(resumed.sample(n), run[static_cast<std::size_t>(n)]);
  options.seed = 8;
  EXPECT_NE(Dataset(counting(1001), options).sample(0), run[0]);
}

TEST(Dataset, TooLittleDataIsBadDataAndNamesBothFigures) {
  EXPECT_EQ(error_of(counting(64), ordered(64)),
            std::pair(ExitCode::bad_data, std::string("'corpus' has 64 tokens: a sample of "
                                                      "sequence length 64 needs 65")));
  EXPECT_EQ(error_of(counting(65), ordered(64)).first, ExitCode::ok);
  EXPECT_EQ(error_of(counting(0, {0}), ordered(64)).first, ExitCode::bad_data);
  DatasetOptions options = ordered(64);
  options.validation_fraction = 0.05;
  options.split = Split::validation;
  EXPECT_EQ(error_of(counting(1000), options),
            std::pair(ExitCode::bad_data,
                      std::string("'corpus' has 50 tokens (validation data of 1000 at validation "
                                  "fraction 0.05): a sample of sequence length 64 needs 65")));
}

TEST(Dataset, ATokenOutsideTheVocabularyIsBadData) {
  DatasetOptions options = ordered(4);
  options.vocab_size = 3;
  const auto [code, text] = error_of(counting(5), options);
  EXPECT_EQ(code, ExitCode::bad_data);
  EXPECT_NE(text.find("'corpus' token 3 is 3: the vocabulary has 3 tokens"), std::string::npos);
}

TEST(Dataset, WrongOptionsAreTheUsersMistake) {
  for (const double fraction : {-0.1, 1.0, std::nan("")}) {
    DatasetOptions options = ordered(4);
    options.validation_fraction = fraction;
    EXPECT_EQ(error_of(counting(50), options).first, ExitCode::usage) << fraction;
  }
  EXPECT_EQ(error_of(counting(50), ordered(0)).first, ExitCode::usage);
  EXPECT_EQ(error_of(counting(50), ordered(INT64_MAX)).first, ExitCode::usage);
}

TEST(Dataset, APairOnTheDiskGivesWhatTheTextGives) {
  const test::TemporaryFolder folder;
  const std::string text = folder.write("a.txt", "the quick brown fox jumps over the lazy dog");
  IndexedWriter writer(folder.path() + "/a");
  writer.append(encode_bytes("the quick brown fox jumps over the lazy dog"));
  writer.append(std::span(&kEndOfDocument, 1));
  writer.end_document();
  writer.commit();
  DatasetOptions options = ordered(8);
  options.vocab_size = kByteVocabulary;
  options.shuffle = true;
  const Dataset from_text(open_token_source(text, DataFormat::automatic), options);
  const Dataset from_pair(open_token_source(folder.path() + "/a", DataFormat::automatic), options);
  ASSERT_EQ(from_text.num_samples(), 5);
  ASSERT_EQ(from_pair.num_samples(), 5);
  for (std::int64_t n = 0; n < 10; ++n)
    EXPECT_EQ(from_text.sample(n), from_pair.sample(n));
}

DatasetOptions sequences(std::int64_t most, Overlong overlong = Overlong::error) {
  DatasetOptions options = ordered(most);
  options.packing = Packing::sequences;
  options.overlong = overlong;
  return options;
}

// The first token of every sample: of counting documents, where each begins.
std::vector<std::int64_t> starts_of(const Dataset& data, std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> out;
  for (std::int64_t n = first; n < end; ++n)
    out.push_back(data.sample(n).tokens[0]);
  return out;
}

TEST(Sequences, ASampleIsADocumentWithoutATargetForItsLastToken) {
  // Documents [0,3) [3,3) [3,4) [4,9) [9,9): those without tokens are none.
  const Dataset data(counting(9, {0, 3, 3, 4, 9, 9}), sequences(5));
  ASSERT_EQ(data.num_samples(), 3);
  EXPECT_EQ(data.num_tokens(), 9);
  EXPECT_EQ(data.longest_document(), 5);
  EXPECT_EQ(data.sample(0), (Sample{{0, 1, 2}, {1, 2, kNoTarget}, {0}}));
  EXPECT_EQ(data.sample(1), (Sample{{3}, {kNoTarget}, {0}}));
  EXPECT_EQ(data.sample(1).num_targets(), 0);
  EXPECT_EQ(data.sample(2), (Sample{{4, 5, 6, 7, 8}, {5, 6, 7, 8, kNoTarget}, {0}}));
  EXPECT_EQ(data.sample(4), data.sample(1));  // the next epoch
  EXPECT_EQ(data.lengths(1, 6), (std::vector<std::int64_t>{1, 5, 3, 1, 5}));
  EXPECT_EQ(data.overlong_note(), "");
}

TEST(Sequences, ADocumentThatIsTooLongIsBadDataAndNamesTheRemedies) {
  const auto [code, text] = error_of(counting(20, {0, 3, 8, 14, 15, 20}), sequences(4));
  EXPECT_EQ(code, ExitCode::bad_data);
  EXPECT_EQ(
      text,
      "'corpus' document 1 (they count from 0) has 5 tokens: training.sequence_length is 4; raise "
      "it, or set data.overlong to drop (3 of 5 documents would be left out) or to truncate "
      "(they would keep their first 4 tokens)");
}

TEST(Sequences, DroppedDocumentsAreNoSamples) {
  const Dataset data(counting(20, {0, 3, 8, 14, 15, 20}), sequences(4, Overlong::drop));
  EXPECT_EQ(data.num_samples(), 2);
  EXPECT_EQ(data.num_tokens(), 4);
  EXPECT_EQ(starts_of(data, 0, 2), (std::vector<std::int64_t>{0, 14}));
  EXPECT_EQ(data.overlong_note(), "3 of 5 documents have more than 4 tokens and were dropped");
  const auto [code, text] = error_of(counting(20, {0, 10, 20}), sequences(4, Overlong::drop));
  EXPECT_EQ(code, ExitCode::bad_data);
  EXPECT_EQ(text,
            "'corpus' has 2 documents, of which the training data holds none (2 of 2 documents "
            "have more than 4 tokens and were dropped): raise training.sequence_length, or set "
            "data.overlong = truncate");
}

TEST(Sequences, ATruncatedDocumentKeepsItsNextTokenAsTheLastTarget) {
  const Dataset data(counting(20, {0, 3, 8, 14, 15, 20}), sequences(4, Overlong::truncate));
  EXPECT_EQ(data.num_samples(), 5);
  EXPECT_EQ(data.num_tokens(), 3 + 4 + 4 + 1 + 4);
  EXPECT_EQ(data.longest_document(), 4);
  EXPECT_EQ(data.sample(1), (Sample{{3, 4, 5, 6}, {4, 5, 6, 7}, {0}}));
  EXPECT_EQ(data.sample(3), (Sample{{14}, {kNoTarget}, {0}}));
  EXPECT_EQ(data.length(2), 4);
  EXPECT_EQ(data.overlong_note(), "3 of 5 documents have more than 4 tokens and were truncated");
  // A document of exactly that length is whole.
  const Dataset whole(counting(8, {0, 4, 8}), sequences(4, Overlong::truncate));
  EXPECT_EQ(whole.sample(0).targets, (Ints{1, 2, 3, kNoTarget}));
  EXPECT_EQ(whole.overlong_note(), "");
}

TEST(Sequences, WholeDocumentsAreHeldOut) {
  // Five with tokens, the last of which has most of them.
  const auto source = counting(40, {0, 2, 2, 4, 6, 8, 40});
  DatasetOptions options = sequences(8, Overlong::truncate);
  options.validation_fraction = 0.4;
  const Dataset training(source, options);
  EXPECT_EQ(starts_of(training, 0, training.num_samples()), (std::vector<std::int64_t>{0, 2, 4}));
  EXPECT_EQ(training.overlong_note(), "");  // those held out are not counted here
  options.split = Split::validation;
  const Dataset held_out(source, options);
  EXPECT_EQ(starts_of(held_out, 0, held_out.num_samples()), (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(held_out.overlong_note(),
            "1 of 2 documents have more than 8 tokens and were truncated");
  EXPECT_EQ(training.identity(), held_out.identity());

  options.validation_fraction = 0.1;
  const auto [code, text] = error_of(source, options);
  EXPECT_EQ(code, ExitCode::bad_data);
  EXPECT_EQ(text,
            "'corpus' has 5 documents, of which the validation data holds none: raise "
            "data.validation_fraction to at least 0.2, or set validation.interval = 0");
}

TEST(Sequences, TheFractionThatAnErrorNamesHoldsOneDocumentOut) {
  for (const std::int64_t documents : {2, 3, 7, 49, 88, 977}) {
    std::vector<std::int64_t> starts;
    for (std::int64_t n = 0; n <= documents; ++n)
      starts.push_back(n);
    const auto source = counting(documents, starts);
    DatasetOptions options = sequences(8);
    options.split = Split::validation;
    options.validation_fraction = 1e-9;
    const std::string text = error_of(source, options).second;
    const std::string before = "at least ";
    options.validation_fraction = std::stod(text.substr(text.find(before) + before.size()));
    EXPECT_EQ(Dataset(source, options).num_samples(), 1) << text;
  }
  const auto [code, text] = error_of(counting(0, {0}), sequences(8));
  EXPECT_EQ(code, ExitCode::bad_data);
  EXPECT_EQ(text, "'corpus' has 0 documents, of which the training data holds none: add documents");
}

TEST(Sequences, AnEpochShowsEachDocumentOnceInAnOrderOfItsOwn) {
  std::vector<std::int64_t> starts = {0};
  for (int n = 0; n < 50; ++n)
    starts.push_back(starts.back() + 1 + n % 7);
  const std::int64_t total = starts.back();
  DatasetOptions options = sequences(7);
  options.shuffle = true;
  options.seed = 5;
  const Dataset data(counting(total, starts), options);
  starts.pop_back();
  const auto first = starts_of(data, 0, 50), second = starts_of(data, 50, 100);
  EXPECT_NE(first, starts);
  EXPECT_NE(first, second);
  for (auto order : {first, second}) {
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, starts);
  }
  for (std::int64_t n = 0; n < 100; ++n)
    EXPECT_EQ(data.length(n), std::ssize(data.sample(n).tokens));
}

MaskOptions masks() {
  return {.seed = 3, .mask_token = 5000, .num_ordinary = 1000, .never_masked = 17};
}

TEST(Masking, IsAFunctionOfSeedAndIndex) {
  const Sample sample = Dataset(counting(201), ordered(200)).sample(0);
  const Sample masked = mask_sample(sample, 5, masks());
  EXPECT_EQ(mask_sample(sample, 5, masks()), masked);
  EXPECT_NE(mask_sample(sample, 6, masks()), masked);
  MaskOptions other = masks();
  other.seed = 4;
  EXPECT_NE(mask_sample(sample, 5, other), masked);
  EXPECT_EQ(masked.segment_starts, sample.segment_starts);
}

// A promise to runs that a later version resumes.
TEST(Masking, TheChoiceNeverChanges) {
  const Sample sample = Dataset(counting(41), ordered(40)).sample(0);
  Sample expected = sample;
  expected.targets.assign(40, kNoTarget);
  for (const std::size_t hidden : {2u, 13u, 15u, 21u, 32u, 33u}) {
    expected.targets[hidden] = sample.tokens[hidden];
    if (hidden < 32) expected.tokens[hidden] = 5000;
  }
  EXPECT_EQ(mask_sample(sample, 5, masks()), expected);
}

TEST(Masking, FifteenPercentAreChosenAndSplitEightyTenTen) {
  const Sample sample = Dataset(counting(1001), ordered(1000)).sample(0);
  int chosen = 0, hidden = 0, random = 0, kept = 0;
  std::vector<int> place_counts(1000);
  for (std::int64_t index = 0; index < 400; ++index) {
    const Sample masked = mask_sample(sample, index, masks());
    EXPECT_EQ(masked.num_targets(), 150);  // round(0.15 * 999)
    for (std::size_t n = 0; n < 1000; ++n) {
      if (masked.targets[n] == kNoTarget) {
        EXPECT_EQ(masked.tokens[n], sample.tokens[n]);
        continue;
      }
      EXPECT_EQ(masked.targets[n], sample.tokens[n]);
      EXPECT_NE(sample.tokens[n], 17);
      ++chosen;
      ++place_counts[n];
      if (masked.tokens[n] == 5000)
        ++hidden;
      else if (masked.tokens[n] == sample.tokens[n])
        ++kept;
      else
        ++random;
      EXPECT_TRUE(masked.tokens[n] == 5000 || masked.tokens[n] < 1000);
    }
  }
  EXPECT_NEAR(static_cast<double>(hidden) / chosen, 0.8, 0.01);
  EXPECT_NEAR(static_cast<double>(random) / chosen, 0.1, 0.01);
  EXPECT_NEAR(static_cast<double>(kept) / chosen, 0.1, 0.01);
  for (std::size_t n = 0; n < 1000; ++n)
    EXPECT_NEAR(place_counts[n], n == 17 ? 0 : 60, n == 17 ? 0 : 45) << n;
}

TEST(Masking, AMaskedDatasetHidesByTheIndexOfTheSample) {
  DatasetOptions options = ordered(20);
  options.packing = Packing::documents;
  const auto source = counting(101, {0, 7, 30, 101});
  const Dataset plain(source, options);
  options.masks = masks();
  const Dataset masked(source, options);
  for (const std::int64_t index : {0, 3, 5, 12})  // past the first epoch, too
    EXPECT_EQ(masked.sample(index), mask_sample(plain.sample(index), index, masks()));
  EXPECT_NE(masked.sample(0), masked.sample(5));  // the same text in the next epoch
  EXPECT_EQ(masked.sample(0).segment_starts, (Ints{0, 7}));
}

TEST(Masking, OfASequenceTheLastTokenMayBeHiddenToo) {
  DatasetOptions options = sequences(3, Overlong::truncate);
  options.masks = masks();
  const Dataset data(counting(9, {0, 1, 4, 9}), options);
  EXPECT_EQ(data.sample(0).num_targets(), 1);  // of one token
  std::set<std::size_t> places;
  for (std::int64_t index = 1; index < 300; index += 3) {
    const Sample sample = data.sample(index);
    ASSERT_EQ(sample.targets.size(), 3u);
    for (std::size_t n = 0; n < 3; ++n) {
      if (sample.targets[n] == kNoTarget) continue;
      places.insert(n);
      EXPECT_EQ(sample.targets[n], 1 + static_cast<std::int32_t>(n));
    }
  }
  EXPECT_EQ(places.size(), 3u);
  EXPECT_EQ(data.sample(2).tokens.size(), 3u);  // truncated
}

TEST(Masking, DataThatHoldsTheMaskIsBadData) {
  DatasetOptions options = ordered(4);
  options.masks = masks();
  options.masks->mask_token = 4;
  options.vocab_size = 5;
  const auto [code, text] = error_of(counting(5), options);
  EXPECT_EQ(code, ExitCode::bad_data);
  EXPECT_NE(text.find("token 4 is 4: the vocabulary has 5 tokens, and 4 is the mask"),
            std::string::npos)
      << text;
}

TEST(Masking, AShortSampleStillHidesOneToken) {
  const Sample masked = mask_sample(Dataset(counting(3), ordered(2)).sample(0), 0, masks());
  EXPECT_EQ(masked.num_targets(), 1);
  const Sample none = mask_sample(Sample{{17, 17}, {17, 17}, {0}}, 0, masks());
  EXPECT_EQ(none.num_targets(), 0);
  EXPECT_EQ(none.tokens, (Ints{17, 17}));
}

}  // namespace
}  // namespace sluice
