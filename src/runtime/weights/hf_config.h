// config.json of a Hugging Face folder: reads the model that it describes, and writes it. A model
// that Sluice does not have is refused by key and value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/config/config.h"
#include "sluice/runtime/files/safetensors.h"

namespace sluice {

// A resolved model of GPT2LMHeadModel or LlamaForCausalLM. Throws UserError (3); `path` is for its
// text. Takes the names that transformers takes, such as num_attention_heads for GPT-2's n_head;
// two that contradict each other, and a size that is missing, are refused. Reads rotary positions
// as transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write them.
ModelConfig read_hf_config(std::string_view json, const std::string& path);

// The token numbers in a config.json (bos_token_id, eos_token_id, pad_token_id), as the text of a
// JSON object; keys that the file does not have are left out. Throws UserError (3).
std::string read_hf_token_ids(std::string_view json, const std::string& path);

struct HfConfigOptions {
  Dtype dtype = Dtype::f32;                   // of the weights
  std::string token_ids = {};                 // of read_hf_token_ids; "": not known
  std::optional<std::int32_t> end_of_text{};  // of the tokenizer, where token_ids are not known
};

// The text of a config.json that transformers 4 and 5 read alike. REQUIRES: gpt2 or llama,
// resolved.
std::string write_hf_config(const ModelConfig& model, const HfConfigOptions& options);

}  // namespace sluice
