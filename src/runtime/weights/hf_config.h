// config.json of a Hugging Face folder: the model it describes, and back. What our model cannot be
// is refused by key and value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/config/config.h"
#include "runtime/files/safetensors.h"

namespace sluice {

// A resolved model of GPT2LMHeadModel or LlamaForCausalLM. Throws UserError (3); `path` is for its
// text. Reads rotary positions as transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters)
// write them.
ModelConfig read_hf_config(std::string_view json, const std::string& path);

struct HfConfigOptions {
  Dtype dtype = Dtype::f32;                   // of the weights
  std::optional<std::int32_t> end_of_text{};  // the token, where it is known
};

// The text of a config.json that transformers 4 and 5 read alike. REQUIRES: gpt2 or llama,
// resolved.
std::string write_hf_config(const ModelConfig& model, const HfConfigOptions& options);

}  // namespace sluice
