// The shape of a transformer, as far as its cost depends on it.
#pragma once

#include <cstdint>

namespace sluice {

enum class ModelFamily {
  gpt2,  // layer norm, tanh GELU, learned positions, biases
  llama  // RMS norm, SwiGLU, rotary positions, grouped-query attention, no biases
};

// How much of a block's forward is thrown away and redone before its backward.
enum class RecomputeLevel {
  none,
  elementwise,        // norms and activation products
  mlp,                // also the up projection
  all_but_attention,  // keeps the block's input, the attention output and its statistics
  full                // keeps the block's input
};

struct ModelShape {
  ModelFamily family = ModelFamily::gpt2;
  std::int64_t layers = 0;
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // equal to heads in the gpt2 family
  std::int64_t ffn_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t positions = 0;  // of the learned position table; 0 in the llama family
  bool tied_embeddings = false;

  std::int64_t head_dim() const { return dim / heads; }
  std::int64_t kv_dim() const { return kv_heads * head_dim(); }
  std::int64_t qkv_dim() const { return dim + 2 * kv_dim(); }
  // Columns of the up projection: the llama family's holds gate and up side by side.
  std::int64_t up_dim() const { return family == ModelFamily::llama ? 2 * ffn_dim : ffn_dim; }
};

}  // namespace sluice
