#include "sluice/cuda/attention.h"

#include <cmath>
#include <limits>

#include "sluice/base/error.h"

namespace sluice::cuda {
namespace {

constexpr std::int64_t kHeadStep = 8;        // head sizes that the kernels take are multiples of it
constexpr std::int64_t kStatisticStep = 32;  // memory-efficient attention's rows of statistics

bool takes_cudnn(const AttentionCall& call) {
  return cuda::takes_cudnn(call.q.scalar_type(), call.q.size(3));
}

at::Tensor padded(const at::Tensor& x, std::int64_t size) {
  return x.size(3) == size ? x : at::constant_pad_nd(x, {0, size - x.size(3)}, 0);
}

AttentionCall padded(const AttentionCall& call, std::int64_t size) {
  return {padded(call.q, size), padded(call.k, size), padded(call.v, size), call.causal};
}

// Keys or values, each repeated for the query heads that share it.
at::Tensor for_heads(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t shared = heads / x.size(1);
  return shared == 1 ? x : x.repeat_interleave(shared, 1);
}

at::Tensor of_shared(const at::Tensor& gradient, std::int64_t kv_heads) {
  const std::int64_t shared = gradient.size(1) / kv_heads;
  if (shared == 1) return gradient;
  return gradient.view({gradient.size(0), kv_heads, shared, gradient.size(2), gradient.size(3)})
      .sum(2, false, at::kFloat)
      .to(gradient.scalar_type());
}

double scale_of(const AttentionCall& call) {
  return 1 / std::sqrt(static_cast<double>(call.q.size(3)));
}

// As the kernels have it: heads side by side.
at::Tensor beside(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

AttentionResult forward(const AttentionCall& call, double scale) {
  if (takes_cudnn(call)) {
    auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, mask] =
        at::_scaled_dot_product_cudnn_attention(call.q, call.k, call.v, std::nullopt, true, 0.0,
                                                call.causal, false, scale);
    return {out, lse.squeeze(-1)};
  }
  const std::int64_t heads = call.q.size(1);
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      call.q, for_heads(call.k, heads), for_heads(call.v, heads), std::nullopt, true, 0.0,
      call.causal, scale);
  return {out, lse.slice(2, 0, call.q.size(2)).contiguous()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& d_out,
                                                        const AttentionCall& call,
                                                        const AttentionResult& over_all,
                                                        double scale) {
  // Of the random numbers that drop weights, and there are none.
  const at::Tensor unused = at::empty({}, call.q.options().dtype(at::kLong));
  const std::int64_t n = call.q.size(2);
  if (takes_cudnn(call))
    return at::_scaled_dot_product_cudnn_attention_backward(
        d_out, call.q, call.k, call.v, over_all.out, over_all.lse.unsqueeze(-1), unused, unused,
        at::Tensor(), at::Tensor(), at::Tensor(), n, call.k.size(2), 0.0, call.causal, scale);
  const std::int64_t heads = call.q.size(1);
  const std::int64_t rows = (n + kStatisticStep - 1) / kStatisticStep * kStatisticStep;
  auto [dq, dk, dv, d_bias] = at::_scaled_dot_product_efficient_attention_backward(
      d_out, call.q, for_heads(call.k, heads), for_heads(call.v, heads), at::Tensor(), over_all.out,
      at::constant_pad_nd(over_all.lse, {0, rows - n}, std::numeric_limits<float>::infinity()),
      unused, unused, 0.0, {true, true, true, false}, call.causal, scale);
  return {dq, of_shared(dk, call.k.size(1)), of_shared(dv, call.v.size(1))};
}

std::int64_t padded_size(const AttentionCall& call) {
  return (call.q.size(3) + kHeadStep - 1) / kHeadStep * kHeadStep;
}

}  // namespace

AttentionResult attention(const AttentionCall& call) {
  SLUICE_CHECK(!call.causal || call.q.size(2) == call.k.size(2), "{} queries for {} keys, causal",
               call.q.size(2), call.k.size(2));
  const std::int64_t size = call.q.size(3), wide = padded_size(call);
  AttentionResult result = forward(padded(call, wide), scale_of(call));
  if (wide != size) result.out = result.out.slice(3, 0, size);
  if (!result.out.transpose(1, 2).is_contiguous()) result.out = beside(result.out);
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& d_out,
                                                                  const AttentionCall& call,
                                                                  const AttentionResult& over_all) {
  const std::int64_t size = call.q.size(3), wide = padded_size(call);
  if (wide == size) return backward(d_out, call, over_all, scale_of(call));
  auto [dq, dk, dv] = backward(padded(d_out, wide), padded(call, wide),
                               {padded(over_all.out, wide), over_all.lse}, scale_of(call));
  return {dq.slice(3, 0, size), dk.slice(3, 0, size), dv.slice(3, 0, size)};
}

}  // namespace sluice::cuda
