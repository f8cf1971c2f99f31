// The GPU's attention kernels, computed on the CPU: what they promise, and what they leave as it
// was. Linked into a program, it has them answer for tensors of the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <limits>

namespace sluice {
namespace {

using at::Tensor;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Of (heads, n, head_dim) and (kv_heads, m, head_dim), fp32; causal: the last query sees all keys.
struct Scores {
  Tensor k, v;     // for all heads
  Tensor product;  // (heads, n, m)
};

Scores scores(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale) {
  const std::int64_t shared = q.size(0) / k.size(0), n = q.size(1), m = k.size(1);
  Scores out{k.repeat_interleave(shared, 0), v.repeat_interleave(shared, 0), {}};
  out.product = at::matmul(q, out.k.transpose(1, 2)) * scale;
  if (causal)
    out.product = out.product.masked_fill(at::ones({n, m}, at::kBool).triu(m - n + 1),
                                          -std::numeric_limits<float>::infinity());
  return out;
}

std::pair<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                  double scale) {
  const Scores s = scores(q, k, v, causal, scale);
  return {at::matmul(at::softmax(s.product, -1), s.v), at::logsumexp(s.product, {-1})};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& d_out, const Tensor& q, const Tensor& k,
                                            const Tensor& v, const Tensor& out, const Tensor& lse,
                                            bool causal, double scale) {
  const Scores s = scores(q, k, v, causal, scale);
  const Tensor weights = (s.product - lse.unsqueeze(-1)).exp();
  const Tensor d_weights = at::matmul(d_out, s.v.transpose(1, 2));
  const Tensor d_scores = weights * (d_weights - (d_out * out).sum(-1, true)) * scale;
  const auto of_shared = [&](const Tensor& x) {
    return x.unflatten(0, {k.size(0), q.size(0) / k.size(0)}).sum(1);
  };
  return {at::matmul(d_scores, s.k), of_shared(at::matmul(d_scores.transpose(1, 2), q)),
          of_shared(at::matmul(weights.transpose(1, 2), d_out))};
}

Tensor wide(const Tensor& x) { return x.to(at::kFloat); }

// As the kernels allocate what they give: heads side by side.
Tensor unwritten(const Tensor& like) {
  return at::full({like.size(0), like.size(2), like.size(1), like.size(3)}, kNan, like.options())
      .transpose(1, 2);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> cudnn(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>&, bool, double,
    bool causal, bool, std::optional<double> scale) {
  Tensor out = unwritten(q), lse = at::full({q.size(0), q.size(1), q.size(2), 1}, kNan, at::kFloat);
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const auto [values, statistics] =
        forward(wide(q[b]), wide(k[b]), wide(v[b]), causal, scale.value());
    out[b].copy_(values);
    lse[b].copy_(statistics.unsqueeze(-1));
  }
  return {out, lse, {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(
    const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
    c10::SymInt, c10::SymInt, double, bool causal, std::optional<double> scale) {
  Tensor dq = unwritten(q), dk = unwritten(k), dv = unwritten(v);
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const auto [for_q, for_k, for_v] =
        backward(wide(d_out[b]), wide(q[b]), wide(k[b]), wide(v[b]), wide(out[b]),
                 lse[b].squeeze(-1), causal, scale.value());
    dq[b].copy_(for_q);
    dk[b].copy_(for_k);
    dv[b].copy_(for_v);
  }
  return {dq, dk, dv};
}

// Calls each(queries, keys) with the ranges of every entry of both.
template <typename Each>
void for_entries(const Tensor& cumulative_queries, const Tensor& cumulative_keys,
                 std::int64_t max_queries, std::int64_t max_keys, const Tensor& q, const Tensor& k,
                 const Each& each) {
  const auto* queries = cumulative_queries.const_data_ptr<std::int32_t>();
  const auto* keys = cumulative_keys.const_data_ptr<std::int32_t>();
  const std::int64_t entries = cumulative_queries.numel() - 1;
  EXPECT_EQ(cumulative_keys.numel(), entries + 1);
  EXPECT_EQ(queries[entries], q.size(0));
  EXPECT_EQ(keys[entries], k.size(0));
  EXPECT_EQ(q.size(2) % 8, 0);
  // With one query each, they are taken for a batch of so many sequences.
  EXPECT_TRUE(max_queries > 1 || q.size(0) == entries);
  for (std::int64_t e = 0; e < entries; ++e) {
    const std::int64_t n = queries[e + 1] - queries[e], m = keys[e + 1] - keys[e];
    if (n == 0 || m == 0) continue;  // whether anything is written then is not relied on
    EXPECT_LE(n, max_queries);
    EXPECT_LE(m, max_keys);
    each(at::indexing::Slice(queries[e], queries[e + 1]),
         at::indexing::Slice(keys[e], keys[e + 1]));
  }
}

Tensor by_heads(const Tensor& rows, const at::indexing::Slice& range) {
  return wide(rows.index({range})).transpose(0, 1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& cumulative_queries, const std::optional<Tensor>& cumulative_keys,
    c10::SymInt max_queries, c10::SymInt max_keys, double, bool causal, bool,
    std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>,
    const std::optional<Tensor>&, const std::optional<Tensor>&) {
  Tensor out = at::full(q.sizes(), kNan, q.options());
  Tensor lse = at::full({q.size(1), q.size(0)}, kNan, at::kFloat);
  for_entries(*cumulative_queries, *cumulative_keys, max_queries.expect_int(),
              max_keys.expect_int(), q, k, [&](const auto& queries, const auto& keys) {
                const auto [values, statistics] = forward(by_heads(q, queries), by_heads(k, keys),
                                                          by_heads(v, keys), causal, scale.value());
                out.index({queries}).copy_(values.transpose(0, 1));
                lse.index({at::indexing::Slice(), queries}).copy_(statistics);
              });
  return {out, lse, {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, const Tensor& cumulative_queries, const Tensor& cumulative_keys,
    c10::SymInt max_queries, c10::SymInt max_keys, double, bool causal, const Tensor&,
    const Tensor&, std::optional<double> scale, std::optional<c10::SymInt>,
    std::optional<c10::SymInt>) {
  Tensor dq = at::full(q.sizes(), kNan, q.options()), dk = at::full(k.sizes(), kNan, k.options());
  Tensor dv = at::full(v.sizes(), kNan, v.options());
  for_entries(cumulative_queries, cumulative_keys, max_queries.expect_int(), max_keys.expect_int(),
              q, k, [&](const auto& queries, const auto& keys) {
                const auto [for_q, for_k, for_v] =
                    backward(by_heads(d_out, queries), by_heads(q, queries), by_heads(k, keys),
                             by_heads(v, keys), by_heads(out, queries),
                             lse.index({at::indexing::Slice(), queries}), causal, scale.value());
                dq.index({queries}).copy_(for_q.transpose(0, 1));
                dk.index({keys}).copy_(for_k.transpose(0, 1));
                dv.index({keys}).copy_(for_v.transpose(0, 1));
              });
  return {dq, dk, dv};
}

TORCH_LIBRARY_IMPL(aten, CPU, kernels) {
  kernels.impl("_scaled_dot_product_cudnn_attention", cudnn);
  kernels.impl("_scaled_dot_product_cudnn_attention_backward", cudnn_backward);
  kernels.impl("_flash_attention_forward", flash);
  kernels.impl("_flash_attention_backward", flash_backward);
}

}  // namespace
}  // namespace sluice
