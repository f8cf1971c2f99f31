// Folders as transformers writes them, of tiny random models.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sluice/runtime/files/safetensors.h"
#include "sluice/runtime/weights/convert.h"

namespace sluice::test {

inline constexpr const char* kTinyGpt2 = R"({"architectures": ["GPT2LMHeadModel"],
 "model_type": "gpt2", "vocab_size": 19, "n_positions": 24, "n_embd": 8, "n_layer": 2, "n_head": 2,
 "n_inner": null, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_ctx": 24,
 "resid_pdrop": 0.1, "tie_word_embeddings": true})";

inline constexpr const char* kTinyLlama = R"({"architectures": ["LlamaForCausalLM"],
 "model_type": "llama", "vocab_size": 19, "max_position_embeddings": 24, "hidden_size": 16,
 "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 4, "hidden_act": "silu", "rms_norm_eps": 1e-06,
 "attention_bias": false, "mlp_bias": false, "rope_theta": 500000.0, "rope_scaling": null,
 "tie_word_embeddings": false})";

using HfTensors = std::map<std::string, std::vector<std::int64_t>>;

inline HfTensors gpt2_tensors(const std::string& prefix = "transformer.") {
  HfTensors out = {
      {"wte.weight", {19, 8}}, {"wpe.weight", {24, 8}}, {"ln_f.weight", {8}}, {"ln_f.bias", {8}}};
  for (const std::string layer : {"h.0.", "h.1."}) {
    for (const std::string norm : {"ln_1", "ln_2"})
      out[layer + norm + ".weight"] = out[layer + norm + ".bias"] = {8};
    const std::tuple<const char*, std::int64_t, std::int64_t> products[] = {
        {"attn.c_attn", 8, 24}, {"attn.c_proj", 8, 8}, {"mlp.c_fc", 8, 32}, {"mlp.c_proj", 32, 8}};
    for (const auto& [name, in, columns] : products) {
      out[layer + name + ".weight"] = {in, columns};
      out[layer + name + ".bias"] = {columns};
    }
  }
  HfTensors named;
  for (auto& [name, shape] : out)
    named[prefix + name] = shape;
  return named;
}

inline HfTensors llama_tensors() {
  HfTensors out = {{"model.embed_tokens.weight", {19, 16}},
                   {"model.norm.weight", {16}},
                   {"lm_head.weight", {19, 16}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    out[layer + "input_layernorm.weight"] = out[layer + "post_attention_layernorm.weight"] = {16};
    out[layer + "self_attn.q_proj.weight"] = out[layer + "self_attn.o_proj.weight"] = {16, 16};
    out[layer + "self_attn.k_proj.weight"] = out[layer + "self_attn.v_proj.weight"] = {8, 16};
    out[layer + "mlp.gate_proj.weight"] = out[layer + "mlp.up_proj.weight"] = {12, 16};
    out[layer + "mlp.down_proj.weight"] = {16, 12};
  }
  return out;
}

// A tensor's values, from its name alone.
inline std::vector<std::byte> hf_values(const std::string& name,
                                        const std::vector<std::int64_t>& shape, Dtype dtype) {
  std::mt19937_64 random(std::hash<std::string>()(name));
  std::uniform_real_distribution<float> value(-0.5F, 0.5F);
  std::vector<float> values(tensor_bytes(Dtype::u8, shape).value());
  for (float& v : values)
    v = value(random);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  if (dtype == Dtype::f16) {  // any finite bits will do
    std::vector<std::byte> half(values.size() * 2);
    for (std::size_t i = 0; i < half.size(); ++i)
      half[i] = bytes[i] & std::byte{0x3b};
    return half;
  }
  return convert({bytes.begin(), bytes.end()}, Dtype::f32, dtype);
}

inline void write_hf_file(const std::string& path, const HfTensors& tensors, Dtype dtype) {
  RealFileSystem files;
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : tensors)
    specs.push_back({name, dtype, shape});
  SafetensorsWriter writer(files, path, std::move(specs), {{"format", "pt"}});
  for (const TensorInfo& tensor : writer.tensors())
    writer.write(hf_values(tensor.name, tensor.shape, dtype));
  writer.commit();
}

// As one file, or as three with an index.
inline void write_hf_folder(const std::string& folder, const std::string& config,
                            const HfTensors& tensors, Dtype dtype = Dtype::f32,
                            bool sharded = false) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config;
  if (!sharded) return write_hf_file(folder + "/model.safetensors", tensors, dtype);
  std::map<std::string, HfTensors> files;
  std::vector<std::string> map;
  std::uint64_t total = 0;
  for (const auto& [name, shape] : tensors) {
    const std::string file = fmt::format("model-0000{}-of-00003.safetensors", map.size() % 3 + 1);
    files[file][name] = shape;
    map.push_back(fmt::format(R"("{}": "{}")", name, file));
    total += tensor_bytes(dtype, shape).value();
  }
  for (const auto& [file, held] : files)
    write_hf_file(folder + "/" + file, held, dtype);
  std::ofstream(folder + "/model.safetensors.index.json") << fmt::format(
      R"({{"metadata": {{"total_size": {}}}, "weight_map": {{{}}}}})", total, fmt::join(map, ","));
}

}  // namespace sluice::test
