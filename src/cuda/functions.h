// The fused functions of the layers on a GPU, on the current stream. Each stands behind a function
// of model/functions.h and computes the same to rounding: sums and everything in between in fp32,
// whatever the type of its tensors (fp32, bf16 or fp16). T is all tokens of a slice. Tensors are of
// one type and contiguous unless it says otherwise; none of the functions waits for the GPU. A
// build without CUDA has a version of this that throws (absent.cpp).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::cuda {

// Fills `out`, contiguous, with what model/parameter.cpp draws for a part of a weight: `columns` of
// each row from (first_row, first_column) on, of a weight with rows of `stride`.
struct NormalPart {
  std::int64_t columns = 1, first_row = 0, first_column = 0, stride = 1;
};
void draw_normal(at::Tensor& out, const NormalPart& part, std::uint64_t seed, double deviation);

struct NormResult {
  at::Tensor y;           // (T, dim)
  at::Tensor mean, rstd;  // (T, 1), fp32; no mean in RMS norm
};
// Layer norm, or RMS norm where `bias` is undefined. x (T, dim), weight and bias (dim).
NormResult norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                double epsilon);
// The same of x + addend, rounded to its type, which is left in `sum`.
NormResult add_norm(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon, at::Tensor& sum);
struct NormGradient {
  at::Tensor dx;                // (T, dim)
  at::Tensor d_weight, d_bias;  // (dim), fp32; no d_bias in RMS norm
};
// `addend` (T, dim), if defined, is added to dx. `mean` is undefined for RMS norm. Repeatable to
// the bit.
NormGradient norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& mean, const at::Tensor& rstd,
                           const at::Tensor& addend);

enum class Activation { gelu_tanh, gelu_erf, swiglu };
// u (T, ffn), or for swiglu (T, 2 ffn) with the gate first -> (T, ffn).
at::Tensor activation(Activation kind, const at::Tensor& u);
at::Tensor activation_backward(Activation kind, const at::Tensor& da, const at::Tensor& u);

// Rotates the first `heads` heads of every row of qkv (T, columns), in place, halves paired. The
// tables (rows, head_dim / 2), fp32, have a row for each token, or for each of the first T / B of
// them, which all B sequences share.
void rotate(at::Tensor& qkv, std::int64_t heads, std::int64_t head_dim, const at::Tensor& cosine,
            const at::Tensor& sine);
// Gradients by heads, (B, heads, n, head_dim), k and v with kv_heads, of any strides but the last
// -> (T, (heads + 2 kv_heads) head_dim) of dq's type; dk and dv may both be fp32. Where tables are
// given, those of q and k are turned back.
// What stands in `more`, of the same sizes and where defined, is added: to dq of its type, to dk
// and dv fp32.
struct HeadGradients {
  at::Tensor dq, dk, dv;
};
at::Tensor join_heads(const HeadGradients& gradients, const HeadGradients& more,
                      const at::Tensor& cosine, const at::Tensor& sine);

// Adds dk and dv (B, kv_heads, m, head_dim), of any strides but the last, to the keys and values of
// slices, (B, kv_heads, n_j, head_dim) fp32, heads side by side in memory, whose lengths add up to
// m. Undefined ones are made, and are then the gradient itself; all are or none is.
void add_keys(const at::Tensor& dk, const at::Tensor& dv, const std::vector<std::int64_t>& lengths,
              std::vector<at::Tensor>& keys, std::vector<at::Tensor>& values);

// Parts (B, heads, n_j, head_dim), of any strides but the last, one behind the other: (B, heads,
// sum of n_j, head_dim), heads side by side in memory.
at::Tensor join_tokens(std::span<const at::Tensor> parts);

// What two attentions over different keys give together, merged by their log-sum-exp, over `a`:
// out (B, heads, n, head_dim) of any strides but the last, a's fp32 or of b's type; lse (B, heads,
// n) fp32 of any strides, -inf where there were no keys: then `out` counts for nothing.
void merge_attention(at::Tensor& a_out, at::Tensor& a_lse, const at::Tensor& b_out,
                     const at::Tensor& b_lse);

// Adds the losses of the rows of logits (T, words) to loss (1, fp64), unscaled; a target of -1 has
// none. With `gradient` the logits become scale times the gradient of the sum of losses. REQUIRES
// targets (T), 64-bit, below `words`.
void cross_entropy(at::Tensor& logits, const at::Tensor& targets, double scale, bool gradient,
                   at::Tensor& loss);

// gradient[rows[n]] += d_rows[n], in no fixed order. gradient (words, dim) fp32; rows (T), 64-bit,
// those outside of the gradient add nothing; d_rows (T, dim).
void add_rows(at::Tensor& gradient, const at::Tensor& rows, const at::Tensor& d_rows);

// The numbers of one update, as optim/optimizer.cpp makes them: AdamW's, NAdam's or plain SGD's.
struct UpdateRates {
  float scale = 1;          // of the gradient
  float keep = 1;           // of the weight, after decay
  float rate = 0;           // of the first moment, corrected; or of the gradient, without moments
  float gradient_rate = 0;  // of the gradient, beside the first moment (NAdam)
  float beta1 = 0, beta2 = 0, rest1 = 1, rest2 = 1;
  float correction = 1;  // of the second moment
  float epsilon = 0;
};
// One update of `value`, all tensors contiguous and of as many elements. `master` fp32, of which
// value is the rounded copy; undefined: value itself is updated, and where it is narrow, rounded to
// the nearest, or with `stochastic` up or down by chance (base/counter_random.h). Moments fp32 or
// bf16, rounded likewise; undefined for plain SGD. The gradient is fp32 or bf16. In fp32 the bits
// are those of the CPU's update.
struct Update {
  at::Tensor value, master, gradient, first_moment, second_moment;
  UpdateRates rates;
  bool stochastic = false;
  std::uint64_t seed = 0;
};
void update(const Update& update);

// out[b] = sum of squares of rows [bounds[b], bounds[b+1]) of a contiguous (rows, ...) tensor, in
// fp64 and repeatable to the bit, for b < out.numel(), at most 64. `bounds` on the host, ascending.
void block_squares(const at::Tensor& gradient, const std::vector<std::int64_t>& bounds,
                   at::Tensor& out);

}  // namespace sluice::cuda
