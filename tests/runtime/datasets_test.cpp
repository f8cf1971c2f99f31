// The data that a configuration names, and what is checked of it before a run.
#include "sluice/runtime/datasets.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sluice/base/error.h"
#include "sluice/data/tokenizer.h"
#include "sluice/runtime/preflight.h"

namespace sluice {
namespace {

class DatasetsTest : public testing::Test {
 protected:
  DatasetsTest() {
    std::string text = testing::TempDir() + "sluice-XXXXXX";
    folder_ = mkdtemp(text.data());
    std::ofstream lines(folder_ / "documents.jsonl");
    for (std::size_t n = 0; n < 40; ++n)
      lines << fmt::format("{{\"text\": \"document {} {}\"}}\n", n, std::string(n % 5, 'x'));
    config_.data.path = (folder_ / "documents.jsonl").string();
    config_.training.sequence_length = 32;
  }
  ~DatasetsTest() override { std::filesystem::remove_all(folder_); }

  void mask() {
    config_.model.shape = ModelFamily::bert;
    config_.model.vocab_size = 258;
  }

  std::pair<ExitCode, std::string> error() const {
    try {
      open_datasets(config_);
    } catch (const UserError& error) {
      return {error.code(), error.what()};
    }
    return {ExitCode::ok, "no error"};
  }

  std::filesystem::path folder_;
  Config config_;
};

TEST_F(DatasetsTest, DocumentsRunOnOrKeepApart) {
  EXPECT_EQ(open_datasets(config_).training.sample(0).segment_starts.size(), 1u);
  config_.data.packing = Packing::documents;
  const Datasets packed = open_datasets(config_);
  const Sample sample = packed.training.sample(0);
  EXPECT_GT(sample.segment_starts.size(), 1u);
  for (std::size_t n = 0; n < sample.tokens.size(); ++n)
    EXPECT_EQ(sample.targets[n] == kNoTarget, sample.tokens[n] == kEndOfDocument) << n;
}

TEST_F(DatasetsTest, TheEncoderGuessesMaskedTokens) {
  mask();
  const Dataset data = open_datasets(config_).training;
  int masked = 0, chosen = 0;
  for (std::int64_t index = 0; index < 2 * data.num_samples(); ++index) {
    const Sample sample = data.sample(index);
    EXPECT_EQ(sample, data.sample(index));
    chosen += static_cast<int>(sample.num_targets());
    for (std::size_t n = 0; n < sample.tokens.size(); ++n) {
      EXPECT_NE(sample.targets[n], kEndOfDocument);
      masked += sample.tokens[n] == kByteMaskToken;
      if (sample.tokens[n] == kByteMaskToken) {
        EXPECT_NE(sample.targets[n], kNoTarget);
      }
    }
  }
  EXPECT_GT(chosen, masked);
  EXPECT_GT(masked, chosen / 2);
}

TEST_F(DatasetsTest, ValidationHidesTheSameTokensEveryTime) {
  mask();
  config_.data.validation_fraction = 0.3;
  EXPECT_FALSE(open_datasets(config_).held_out);
  config_.validation.interval = 5;
  const Datasets first = open_datasets(config_), again = open_datasets(config_);
  ASSERT_TRUE(first.held_out);
  for (std::int64_t n = 0; n < first.held_out->num_samples(); ++n)
    EXPECT_EQ(first.held_out->sample(n), again.held_out->sample(n));
}

TEST_F(DatasetsTest, BytesWithMasksNeedOneTokenMore) {
  mask();
  config_.model.vocab_size = 257;
  const auto [code, text] = error();
  EXPECT_EQ(code, ExitCode::usage);
  EXPECT_NE(text.find("model.vocab_size is 257"), std::string::npos) << text;
  EXPECT_NE(text.find("use 258"), std::string::npos) << text;
}

TEST_F(DatasetsTest, MissingDataIsOneLineWithTheRemedy) {
  config_.data.path = (folder_ / "kjv.txt").string();
  const auto [code, text] = error();
  EXPECT_EQ(code, ExitCode::usage);
  EXPECT_NE(text.find("kjv.txt': no such file or folder"), std::string::npos) << text;
  EXPECT_NE(text.find("tools/corpus"), std::string::npos) << text;
  config_.data.path.clear();
  EXPECT_EQ(error().first, ExitCode::usage);
}

TEST_F(DatasetsTest, ABinaryFileIsNoTrainingTextUnlessBytesAreMeant) {
  config_.data.path = (folder_ / "corpus.gz").string();
  std::ofstream(config_.data.path) << "\x1f\x8b" << std::string(100, 'x');
  for (const DataFormat format : {DataFormat::automatic, DataFormat::text}) {
    config_.data.format = format;
    const auto [code, text] = error();
    EXPECT_EQ(code, ExitCode::bad_data);
    EXPECT_NE(text.find("corpus.gz' is not UTF-8 text: byte 1 is 0x8b"), std::string::npos) << text;
  }
  config_.data.format = DataFormat::bytes;
  EXPECT_EQ(open_datasets(config_).training.num_tokens(), 103);
}

// As much data as anybody wants, which nobody has read; `bad` is a token outside the vocabulary.
class EndlessSource : public TokenSource {
 public:
  explicit EndlessSource(std::int64_t bad) : bad_(bad) {}
  const std::string& name() const override { return name_; }
  std::int64_t num_tokens() const override { return starts_.back(); }
  const std::vector<std::int64_t>& document_starts() const override { return starts_; }
  void read(std::int64_t begin, std::span<std::int32_t> out) const override {
    std::fill(out.begin(), out.end(), 1);
    const auto end = begin + static_cast<std::int64_t>(out.size());
    if (bad_ >= begin && bad_ < end) out[static_cast<std::size_t>(bad_ - begin)] = 1000;
    num_read += end - begin;
  }
  mutable std::int64_t num_read = 0;

 private:
  std::int64_t bad_;
  std::string name_ = "endless";
  std::vector<std::int64_t> starts_ = {0, std::int64_t{1} << 40};
};

TEST(Preflight, OfALargeBatchItReadsBothEnds) {
  constexpr std::int64_t kLength = 32;
  constexpr int kBatch = 1 << 24;
  RunPlan plan;
  plan.config.checkpoint.folder = plan.config.metrics.folder = "";
  plan.config.training.global_batch_size = kBatch;
  const auto check = [&](std::int64_t bad) {
    const auto source = std::make_shared<EndlessSource>(bad);
    const Dataset data(source, {.sequence_length = kLength, .vocab_size = 257, .shuffle = false});
    check_before_run(plan, &data);
    return source->num_read;
  };
  const std::int64_t num_read = check(-1);
  EXPECT_GE(num_read, 2 * kLength);
  EXPECT_LE(num_read, 1000 * kLength);
  EXPECT_THROW(check(0), UserError);
  EXPECT_THROW(check(kBatch * kLength - 1), UserError);
  EXPECT_EQ(check(kBatch * kLength + 1), num_read);  // of the next batch
}

}  // namespace
}  // namespace sluice
