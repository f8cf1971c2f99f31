#include "cost/weights.h"

namespace sluice {
namespace {

std::int64_t product(std::int64_t out, std::int64_t in, bool bias) {
  return out * in + (bias ? out : 0);
}

std::int64_t norm(const ModelShape& shape) { return (shape.has_biases() ? 2 : 1) * shape.dim; }

}  // namespace

std::int64_t block_weights(const ModelShape& s) {
  const bool bias = s.has_biases();
  return product(s.qkv_dim(), s.dim, bias) + product(s.dim, s.dim, bias) +
         product(s.up_dim(), s.dim, bias) + product(s.dim, s.ffn_dim, bias) + 2 * norm(s);
}

std::int64_t embedding_weights(const ModelShape& s) {
  return (s.vocab_size + s.positions) * s.dim + (s.encoder() ? norm(s) : 0);
}

std::int64_t head_weights(const ModelShape& s) {
  const std::int64_t dense = s.encoder() ? product(s.dim, s.dim, true) : 0;
  return dense + norm(s) + product(s.vocab_size, s.dim, s.encoder());
}

}  // namespace sluice
