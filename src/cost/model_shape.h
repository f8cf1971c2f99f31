// The shape of a transformer, as far as its cost depends on it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sluice {

enum class ModelFamily {
  gpt2,   // layer norm, tanh GELU, learned positions, biases
  llama,  // RMS norm, SwiGLU, rotary positions, grouped-query attention, no biases
  bert    // an encoder: attention both ways, norms after the sums, erf GELU, otherwise as gpt2
};
constexpr auto names_of(ModelFamily) {
  return std::array<std::string_view, 3>{"gpt2", "llama", "bert"};
}

// How much of a block's forward is thrown away and redone before its backward.
enum class RecomputeLevel {
  none,
  elementwise,        // norms and activation products
  mlp,                // also the up projection
  all_but_attention,  // keeps the block's input, the attention output and its statistics
  full                // keeps the block's input
};
constexpr auto names_of(RecomputeLevel) {
  return std::array<std::string_view, 5>{"none", "elementwise", "mlp", "all-but-attention", "full"};
}

// Llama 3.1's stretching of the rotary frequencies, for more positions than it was first trained
// on: waves longer than original_positions / low_freq_factor are stretched by `factor`, those
// shorter than original_positions / high_freq_factor not at all, those between gradually.
struct RopeScaling {
  double factor = 0;  // 0: no scaling
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_positions = 8192;
};

struct ModelShape {
  ModelFamily family = ModelFamily::gpt2;
  std::int64_t layers = 0;
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // equal to heads outside the llama family
  std::int64_t ffn_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t positions = 0;  // of the learned position table; 0 in the llama family
  bool tied_embeddings = false;
  double rope_theta = 10000;   // base of the rotary frequencies (llama)
  double norm_epsilon = 1e-5;  // added to the variance
  RopeScaling rope_scaling = {};

  // Layer norms, biases and learned positions go together.
  bool has_biases() const { return family != ModelFamily::llama; }
  // Norms stand after the sums, not before the matmuls; each token sees its whole document.
  bool encoder() const { return family == ModelFamily::bert; }
  std::int64_t head_dim() const { return dim / heads; }
  std::int64_t kv_dim() const { return kv_heads * head_dim(); }
  std::int64_t qkv_dim() const { return dim + 2 * kv_dim(); }
  // Columns of the up projection: the llama family's holds gate and up side by side.
  constexpr std::int64_t up_dim() const {
    return family == ModelFamily::llama ? 2 * ffn_dim : ffn_dim;
  }
};

// What one of `tensor` ranks that share a layer has of it.
struct LocalShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // at least 1: more ranks than heads hold copies
  std::int64_t ffn_dim = 0;
  std::int64_t head_dim = 0;
  std::int64_t up_columns = 0;  // of the up projection

  std::int64_t q_dim() const { return heads * head_dim; }
  std::int64_t kv_dim() const { return kv_heads * head_dim; }
  std::int64_t qkv_dim() const { return q_dim() + 2 * kv_dim(); }
};
constexpr LocalShape local_shape(const ModelShape& shape, std::int64_t tensor) {
  return {.heads = shape.heads / tensor,
          .kv_heads = shape.kv_heads > tensor ? shape.kv_heads / tensor : 1,
          .ffn_dim = shape.ffn_dim / tensor,
          .head_dim = shape.dim / shape.heads,
          .up_columns = shape.up_dim() / tensor};
}

}  // namespace sluice
