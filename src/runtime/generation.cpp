#include "sluice/runtime/generation.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/error.h"
#include "sluice/data/bpe.h"
#include "sluice/data/tokenizer.h"

namespace sluice {
namespace {

// A token and its weight: its probability times a factor that all tokens share.
struct Weighted {
  std::int32_t token;
  double weight;
};

bool likelier(const Weighted& a, const Weighted& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// Leaves the fewest of the likeliest tokens that hold `share` of the weight.
void keep_share(std::vector<Weighted>& tokens, double share) {
  std::sort(tokens.begin(), tokens.end(), likelier);
  double total = 0;
  for (const Weighted& token : tokens)
    total += token.weight;
  double kept = 0;
  std::size_t count = 0;
  while (count < tokens.size() && (count == 0 || kept < share * total))
    kept += tokens[count++].weight;
  tokens.resize(count);
}

}  // namespace

std::int32_t draw_token(std::span<const float> logits, const SamplingOptions& options,
                        RandomStream& random) {
  for (const float logit : logits)
    if (!std::isfinite(logit))
      throw UserError(
          "the model's logits are not finite (nan or inf): the model has diverged; generate from "
          "an earlier checkpoint",
          ExitCode::diverged);
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  SLUICE_CHECK(options.top_p > 0 && options.top_p <= 1, "top_p is {}", options.top_p);
  std::vector<Weighted> tokens;
  tokens.reserve(logits.size());
  for (const float logit : logits)
    tokens.push_back({static_cast<std::int32_t>(tokens.size()),
                      std::exp((double{logit} - double{*likeliest}) / options.temperature)});
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(tokens.size())) {
    std::nth_element(tokens.begin(), tokens.begin() + options.top_k - 1, tokens.end(), likelier);
    tokens.resize(static_cast<std::size_t>(options.top_k));
  }
  if (options.top_p < 1) keep_share(tokens, options.top_p);
  std::sort(tokens.begin(), tokens.end(),
            [](const Weighted& a, const Weighted& b) { return a.token < b.token; });
  double sum = 0;
  for (Weighted& token : tokens)
    token.weight = sum += token.weight;  // of the tokens so far
  const double point = static_cast<double>(random.next() >> 11) * 0x1p-53 * sum;
  return std::upper_bound(tokens.begin(), tokens.end() - 1, point,
                          [](double p, const Weighted& token) { return p < token.weight; })
      ->token;
}

void TextGenerator::check_prompt(std::span<const std::int32_t> prompt) const {
  if (prompt.empty()) throw user_error("the prompt is empty: needs at least one token");
  for (const std::int32_t token : prompt)
    if (token < 0 || token >= config().model.vocab_size)
      throw user_error("the prompt has token {}: the model's vocabulary is 0 to {}", token,
                       config().model.vocab_size - 1);
}

std::int64_t TextGenerator::continue_tokens(std::span<const std::int32_t> prompt,
                                            const SamplingOptions& options,
                                            const std::function<bool(std::int32_t)>& on_token) {
  check_prompt(prompt);
  const auto window = static_cast<std::size_t>(config().model.positions);
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  std::size_t num_new = tokens.size();
  RandomStream random(options.seed, 0);
  model_.decoder->restart();
  for (std::int64_t drawn = 0; drawn < options.num_tokens; ++drawn) {
    if (static_cast<std::size_t>(model_.decoder->length()) + num_new > window) {
      model_.decoder->restart();
      num_new = std::min(tokens.size(), (window + 1) / 2);
    }
    const at::Tensor logits =
        model_.decoder->feed(std::span(tokens).last(num_new)).cpu().contiguous();
    tokens.push_back(
        draw_token({logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())},
                   options, random));
    num_new = 1;
    if (!on_token(tokens.back())) return drawn + 1;
  }
  return options.num_tokens;
}

std::int64_t TextGenerator::continue_text(const std::string& prompt, const SamplingOptions& options,
                                          const std::function<void(std::string_view)>& on_text) {
  const auto words = model_.tokenizer.empty() ? nullptr : open_tokenizer(model_.tokenizer);
  if (!words && config().model.vocab_size > kByteVocabulary)
    throw user_error(
        "model.vocab_size is {}, and {} has no tokenizer.json: without one, a text prompt needs a "
        "model of bytes ({} tokens); put the model's tokenizer.json there, or use `prompt_ids`",
        config().model.vocab_size, model_.folder, kByteVocabulary);
  const std::vector<std::int32_t> tokens = words ? words->encode(prompt) : encode_bytes(prompt);
  check_prompt(tokens);
  const std::int32_t end = words ? words->end_of_document() : kEndOfDocument;
  TextStream text;
  const auto show = [&](std::int32_t token) {
    if (!words) return on_text(text.put(token));
    for (const std::int32_t byte : encode_bytes(words->bytes_of(token)))
      on_text(text.put(byte));
  };
  std::for_each(tokens.begin(), tokens.end(), show);
  const std::int64_t drawn = continue_tokens(tokens, options, [&](std::int32_t token) {
    if (token == end) return false;
    show(token);
    return true;
  });
  on_text(text.end());
  return drawn;
}

std::string sample_text(const std::string& checkpoint, const std::string& prompt,
                        const SamplingOptions& options, at::Device device) {
  std::string text;
  TextGenerator(checkpoint, device).continue_text(prompt, options, [&](std::string_view piece) {
    text += piece;
  });
  return text;
}

}  // namespace sluice
