#include "sluice/runtime/generation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/config/model.h"
#include "sluice/model/decoder.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

TEST(DrawToken, TakesTheLikeliestAtTemperatureZero) {
  RandomStream random(1, 0);
  const std::vector<float> logits = {0, 3, -1, 3};
  for (int n = 0; n < 10; ++n)
    EXPECT_EQ(draw_token(logits, {.temperature = 0}, random), 1);
}

// Shares of 4096 draws.
std::vector<double> shares(const std::vector<float>& logits, const SamplingOptions& options) {
  RandomStream random(options.seed, 0);
  std::vector<double> out(logits.size());
  for (int n = 0; n < 4096; ++n)
    out[static_cast<std::size_t>(draw_token(logits, options, random))] += 1.0 / 4096;
  return out;
}

TEST(DrawToken, FollowsTheProbabilities) {
  const std::vector<float> logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F)};
  const std::vector<double> plain = shares(logits, {.temperature = 1});
  EXPECT_NEAR(plain[0], 1.0 / 8, 0.03);
  EXPECT_NEAR(plain[2], 5.0 / 8, 0.03);
  const std::vector<double> safer = shares(logits, {.temperature = 0.5});  // 1, 4, 25
  EXPECT_NEAR(safer[2], 25.0 / 30, 0.03);
  EXPECT_EQ(shares(logits, {.temperature = 1}), plain);
  EXPECT_NE(shares(logits, {.temperature = 1, .seed = 1}), plain);
}

TEST(DrawToken, TopKLeavesOutTheRest) {
  const std::vector<float> logits = {1, 5, 2, 5, 5};
  const std::vector<double> two = shares(logits, {.temperature = 100, .top_k = 2});
  EXPECT_NEAR(two[1], 0.5, 0.05);
  EXPECT_NEAR(two[3], 0.5, 0.05);  // the first ones, of equally likely
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 1})[1], 1);
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 5}), shares(logits, {.temperature = 1}));
}

TEST(DrawToken, TopPKeepsTheLikeliestTokensThatReachTheShare) {
  // 1/16, 8/16, 2/16, 4/16, 1/16
  const std::vector<float> logits = {0, std::log(8.0F), std::log(2.0F), std::log(4.0F), 0};
  const auto kept = [&](const SamplingOptions& options) {
    std::vector<int> tokens;
    const std::vector<double> drawn = shares(logits, options);
    for (std::size_t n = 0; n < drawn.size(); ++n)
      if (drawn[n] > 0) tokens.push_back(static_cast<int>(n));
    return tokens;
  };
  using Tokens = std::vector<int>;
  EXPECT_EQ(kept({.temperature = 1, .top_p = 1e-9}), Tokens{1});
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.49}), Tokens{1});
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.51}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.74}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.76}), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.9}), (Tokens{0, 1, 2, 3}));  // the first of equals
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.95}), (Tokens{0, 1, 2, 3, 4}));
  // The shares among those that stay are as they were.
  const std::vector<double> two = shares(logits, {.temperature = 1, .top_p = 0.7});
  EXPECT_NEAR(two[1], 2.0 / 3, 0.03);
  EXPECT_NEAR(two[3], 1.0 / 3, 0.03);
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_p = 1}), shares(logits, {.temperature = 1}));
}

TEST(DrawToken, TopPLooksAtWhatTemperatureAndTopKLeave) {
  const std::vector<float> logits = {std::log(8.0F), std::log(4.0F), std::log(2.0F), 0};
  const auto last_kept = [&](const SamplingOptions& options) {
    const std::vector<double> drawn = shares(logits, options);
    std::size_t last = 0;
    for (std::size_t n = 0; n < drawn.size(); ++n)
      if (drawn[n] > 0) last = n;
    return last;
  };
  // 8/15 of all; at temperature 1/2 64/85, at 2 only 0.39.
  EXPECT_EQ(last_kept({.temperature = 1, .top_p = 0.6}), 1u);
  EXPECT_EQ(last_kept({.temperature = 0.5, .top_p = 0.6}), 0u);
  EXPECT_EQ(last_kept({.temperature = 2, .top_p = 0.7}), 2u);
  // 12/15 of all is less than 0.85, but of the likeliest two it is everything.
  EXPECT_EQ(last_kept({.temperature = 1, .top_p = 0.85}), 2u);
  EXPECT_EQ(last_kept({.temperature = 1, .top_k = 2, .top_p = 0.85}), 1u);
  EXPECT_EQ(last_kept({.temperature = 1, .top_k = 2, .top_p = 0.6}), 0u);  // 8/12
}

TEST(DrawToken, RefusesWhatIsNoNumber) {
  RandomStream random(1, 0);
  EXPECT_THROW(draw_token(std::vector<float>{0, NAN}, {}, random), UserError);
  EXPECT_THROW(draw_token(std::vector<float>{0, INFINITY}, {.temperature = 0}, random), UserError);
}

class Generation : public testing::Test {
 protected:
  Generation() { at::set_num_threads(1); }

  static Config small() {
    Config config;
    config.model.layers = 2;
    config.model.dim = 16;
    config.model.heads = 2;
    config.model.positions = 8;
    config.training.sequence_length = 8;
    return resolve_config(config);
  }

  static CheckpointInfo info_of(std::int64_t step, const std::string& config) {
    CheckpointInfo info;
    info.step = step;
    info.config = config;
    return info;
  }

  // A checkpoint of random weights, cut over two ranks where it has rows enough.
  std::string save(const Config& config) {
    Decoder decoder(model_shape(config), at::kFloat);
    for (Parameter* parameter : decoder.parameters())
      if (parameter->value.dim() > 1) initialise_normal(parameter->value, 5, parameter->name, 0.3);
    const std::string path =
        fmt::format("{}/{}-{}", folder_.path(), config.model.shape, config.model.vocab_size);
    RealFileSystem files;
    CheckpointFolder ranks[] = {{files, {.folder = path, .rank = 0, .num_ranks = 2}},
                                {files, {.folder = path, .rank = 1, .num_ranks = 2}}};
    for (const bool second : {false, true}) {
      std::vector<TensorPiece> pieces;
      std::vector<at::Tensor> parts;
      for (const Parameter* parameter : decoder.parameters()) {
        const std::int64_t rows = parameter->value.size(0), cut = rows / 3;
        const TensorSpec whole{parameter->name, Dtype::f32, parameter->value.sizes().vec()};
        const Box box = rows_of(whole, second ? cut : 0, second ? rows : cut);
        pieces.push_back({whole, box});
        parts.push_back(parameter->value.slice(0, box.rows.begin, box.rows.end).contiguous());
      }
      ranks[second].write_shard(3, pieces, [&](std::size_t i) {
        return std::span(static_cast<const std::byte*>(parts[i].const_data_ptr()),
                         parts[i].nbytes());
      });
    }
    ranks[0].commit(info_of(3, config_text(config)));
    return path;
  }

  static std::vector<std::int32_t> continued(TextGenerator& generator,
                                             std::vector<std::int32_t> prompt,
                                             const SamplingOptions& options) {
    const std::int64_t drawn = generator.continue_tokens(prompt, options, [&](std::int32_t token) {
      prompt.push_back(token);
      return true;
    });
    EXPECT_EQ(drawn, options.num_tokens);
    return prompt;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Generation, SlidesOnWhereThePositionsAreFull) {
  for (const ModelFamily shape : {ModelFamily::gpt2, ModelFamily::llama}) {
    SCOPED_TRACE(name_of(shape));
    Config config = small();
    config.model.shape = shape;
    TextGenerator generator(save(config));
    EXPECT_EQ(generator.config(), config);
    const std::vector<std::int32_t> ours =
        continued(generator, {7, 100, 30}, {.num_tokens = 20, .temperature = 0});
    // Anew for every token: 3..8 tokens, then always from 4 to 8 of the last ones.
    Decoder decoder(model_shape(config), at::kFloat);
    for (Parameter* parameter : decoder.parameters())
      if (parameter->value.dim() > 1) initialise_normal(parameter->value, 5, parameter->name, 0.3);
    std::vector<std::int32_t> expected = {7, 100, 30};
    std::size_t seen = 3;
    while (expected.size() < ours.size()) {
      decoder.restart();
      expected.push_back(static_cast<std::int32_t>(
          decoder.feed(std::span(expected).last(seen)).argmax().item<std::int64_t>()));
      seen = seen == 8 ? 4 : seen + 1;
    }
    EXPECT_EQ(ours, expected);
    // A prompt that is longer than all positions counts with its later half.
    std::vector<std::int32_t> longer(20);
    std::iota(longer.begin(), longer.end(), 1);
    const SamplingOptions one{.num_tokens = 1, .temperature = 0};
    EXPECT_EQ(continued(generator, longer, one).back(),
              continued(generator, {17, 18, 19, 20}, one).back());
  }
}

TEST_F(Generation, DependsOnTheSeedAlone) {
  TextGenerator generator(save(small()));
  const auto drawn = [&](std::uint64_t seed) {
    return continued(generator, {1, 2}, {.num_tokens = 30, .seed = seed});
  };
  EXPECT_EQ(drawn(0), drawn(0));
  EXPECT_NE(drawn(0), drawn(1));
}

TEST_F(Generation, TextIsThePromptAndValidUtf8) {
  const std::string text = sample_text(save(small()), "für ", {.num_tokens = 50});
  EXPECT_TRUE(text.starts_with("für ")) << text;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t length = utf8_length(rest);
    ASSERT_TRUE(length != 0 && length != rest.npos) << text;
    rest.remove_prefix(length);
  }
}

TEST_F(Generation, RefusesWhatItCannotContinue) {
  const auto expect = [](const std::function<void()>& call, ExitCode code, const char* part) {
    try {
      call();
      ADD_FAILURE() << "no error about " << part;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  Config config = small();
  const std::string good = save(config);
  TextGenerator generator(good);
  const auto ignore = [](std::int32_t) { return true; };
  expect([&] { generator.continue_tokens({}, {}, ignore); }, ExitCode::usage, "empty");
  expect([&] { generator.continue_tokens(std::vector{257}, {}, ignore); }, ExitCode::usage, "257");
  expect([&] { TextGenerator(folder_.path() + "/nowhere"); }, ExitCode::bad_data, "nowhere");
  // The weights of one model under the configuration of another.
  RealFileSystem files;
  const auto committed_as = [&](const std::string& text) {
    const std::string path = folder_.path() + "/other";
    std::filesystem::remove_all(path);
    CheckpointFolder folder(files, {.folder = path});
    folder.write_shard(1, {}, [](std::size_t) { return std::span<const std::byte>(); });
    folder.commit(info_of(1, text));
    return path;
  };
  expect([&] { TextGenerator(committed_as(config_text(config))); }, ExitCode::bad_data,
         "has no tensor 'embedding.weight'");
  expect([&] { TextGenerator(committed_as("[modle]\n")); }, ExitCode::bad_data, "modle");
  config.model.shape = ModelFamily::bert;
  expect([&] { TextGenerator(committed_as(config_text(config))); }, ExitCode::usage, "bert");
  config = small();
  config.model.vocab_size = 300;
  expect([&] { sample_text(save(config), "a"); }, ExitCode::usage, "300");
}

}  // namespace
}  // namespace sluice
