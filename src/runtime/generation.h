// Sampling from a checkpoint, whatever the mesh and the schedule it was saved under: the whole
// model in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/permutation.h"
#include "runtime/loaded_model.h"

namespace sluice {

struct SamplingOptions {
  std::int64_t num_tokens = 200;  // drawn at most
  double temperature = 0.8;       // 0: the likeliest token, always
  std::int64_t top_k = 0;         // among the k likeliest tokens; 0: all
  std::uint64_t seed = 0;
};

// A token drawn by its logits. Of equally likely ones the first is the likelier. Throws UserError
// diverged where a logit is not finite.
std::int32_t draw_token(std::span<const float> logits, const SamplingOptions& options,
                        RandomStream& random);

class TextGenerator {
 public:
  // As load_model().
  explicit TextGenerator(const std::string& checkpoint, at::Device device = at::kCPU)
      : model_(load_model(checkpoint, device)) {}

  const Config& config() const { return model_.config; }  // of the run that saved it

  // Throws UserError for a prompt that is empty or not of the vocabulary.
  void check_prompt(std::span<const std::int32_t> prompt) const;

  // Continues the prompt until `on_token`, called with each token as it is drawn, returns false, or
  // num_tokens are drawn; returns how many were. The same for equal weights, prompt, options,
  // threads and device. The model sees at most model.positions tokens: where they are full, it goes
  // on with the later half of them. Throws as check_prompt.
  std::int64_t continue_tokens(std::span<const std::int32_t> prompt, const SamplingOptions& options,
                               const std::function<bool(std::int32_t)>& on_token);

  // The prompt and its continuation up to the end of the document, in the tokens of the
  // checkpoint's tokenizer.json, or, without one, in bytes; `on_text` is called with each further
  // piece, whole characters that can be shown. Throws UserError for a model of another vocabulary.
  std::int64_t continue_text(const std::string& prompt, const SamplingOptions& options,
                             const std::function<void(std::string_view)>& on_text);

 private:
  LoadedModel model_;
};

// The prompt and its continuation.
std::string sample_text(const std::string& checkpoint, const std::string& prompt,
                        const SamplingOptions& options = {}, at::Device device = at::kCPU);

}  // namespace sluice
