// Attention on a GPU, of whole calls: the parts that slices and documents make of it are put
// together in model/attention.cpp. Half precision goes to cuDNN, fp32 to memory-efficient
// attention. Of ATen alone, so that a build without CUDA has it, too.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace sluice::cuda {

// Whether cuDNN is called for heads of this type and size. On fp32 it would give no error and wrong
// numbers.
inline bool takes_cudnn(at::ScalarType type, std::int64_t head_dim) {
  return (type == at::kBFloat16 || type == at::kHalf) && head_dim <= 128;
}

struct AttentionCall {
  at::Tensor q;         // (B, heads, n, head_dim), of any strides but the last
  at::Tensor k, v;      // (B, kv_heads, m, head_dim), likewise
  bool causal = false;  // REQUIRES n == m
};
struct AttentionResult {
  at::Tensor out;  // (B, heads, n, head_dim), in memory with heads side by side
  at::Tensor lse;  // (B, heads, n), fp32
};
AttentionResult attention(const AttentionCall& call);
// Of a call whose queries may have seen other keys, too: out and lse are over all of them.
// -> dq, dk, dv, the latter two with kv_heads.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& d_out,
                                                                  const AttentionCall& call,
                                                                  const AttentionResult& over_all);

}  // namespace sluice::cuda
