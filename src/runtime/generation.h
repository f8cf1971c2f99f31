// Sampling from a checkpoint, whatever mesh and schedule it was saved under: the whole model is
// loaded into this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/data/permutation.h"
#include "sluice/runtime/loaded_model.h"

namespace sluice {

struct SamplingOptions {
  std::int64_t num_tokens = 200;  // drawn at most
  double temperature = 0.8;       // 0: always the likeliest token
  std::int64_t top_k = 0;         // among the k likeliest tokens; 0: all
  double top_p = 1;               // among the likeliest whose probabilities sum to p, 0 < p <= 1
  std::uint64_t seed = 0;
};

// Draws a token by its logits: the temperature is applied first, then top_k, then top_p. Of equally
// likely tokens the lower number counts as the likelier. Throws UserError diverged where a logit is
// not finite.
std::int32_t draw_token(std::span<const float> logits, const SamplingOptions& options,
                        RandomStream& random);

class TextGenerator {
 public:
  // As load_model().
  explicit TextGenerator(const std::string& checkpoint, at::Device device = at::kCPU)
      : model_(load_model(checkpoint, device)) {}

  const Config& config() const { return model_.config; }  // of the run that saved it

  // Throws UserError for a prompt that is empty or has a token outside the vocabulary.
  void check_prompt(std::span<const std::int32_t> prompt) const;

  // Continues the prompt until num_tokens are drawn, or `on_token`, which is called with each token
  // as it is drawn, returns false. Returns how many were drawn. Equal weights, prompt, options,
  // threads and device give equal tokens. The model sees at most model.positions tokens: once they
  // are full, it continues with the later half of them. Throws as check_prompt.
  std::int64_t continue_tokens(std::span<const std::int32_t> prompt, const SamplingOptions& options,
                               const std::function<bool(std::int32_t)>& on_token);

  // Gives the prompt and its continuation, up to the end of the document, to `on_text`, piece by
  // piece: whole characters that can be shown. Tokens are those of the checkpoint's tokenizer.json,
  // or bytes without one. Throws UserError for a model of another vocabulary.
  std::int64_t continue_text(const std::string& prompt, const SamplingOptions& options,
                             const std::function<void(std::string_view)>& on_text);

 private:
  LoadedModel model_;
};

// The prompt and its continuation.
std::string sample_text(const std::string& checkpoint, const std::string& prompt,
                        const SamplingOptions& options = {}, at::Device device = at::kCPU);

}  // namespace sluice
