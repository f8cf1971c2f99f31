// The MLP of a block: all tokens at once, or on a GPU chunk by chunk.
#include <algorithm>

#include "sluice/model/block.h"
#include "sluice/run/op_workspace.h"

namespace sluice {

void Block::restore_mlp(BlockStash& stash, const SliceContext& context) const {
  if (!stash.u.defined()) stash.u = linear(gathered(up_input(stash), context), up_);
  if (!stash.a.defined()) stash.a = activation(shape_.family, stash.u);
  if (shape_.encoder() && !stash.z.defined())
    stash.z = stash.n1 + begin_sum(linear(stash.a, down_)).finish();
}

bool Block::mlp_in_chunks(const SliceContext& context) const {
  return mlp_chunk(*context.plan, context.num_tokens()) < context.num_tokens();
}

at::Tensor Block::mlp_by_chunks(const BlockStash& stash, const SliceContext& context) const {
  const std::int64_t chunk = mlp_chunk(*context.plan, context.num_tokens());
  at::Tensor y = at::empty_like(stash.x2);
  for (std::int64_t begin = 0; begin < y.size(0); begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, y.size(0));
    const at::Tensor u = linear(stash.n2.slice(0, begin, end), up_);
    at::Tensor into = y.slice(0, begin, end);
    at::add_out(into, stash.x2.slice(0, begin, end), linear(activation(shape_.family, u), down_));
  }
  return y;
}

at::Tensor Block::mlp_backward_by_chunks(const BlockStash& stash, const at::Tensor& dy,
                                         const SliceContext& context) {
  const std::int64_t chunk = mlp_chunk(*context.plan, context.num_tokens());
  at::Tensor d_n2 = at::empty_like(stash.n2);
  for (std::int64_t begin = 0; begin < dy.size(0); begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, dy.size(0));
    const at::Tensor n2 = stash.n2.slice(0, begin, end), d_down = dy.slice(0, begin, end);
    const at::Tensor u = linear(n2, up_);
    linear_weight_grad(d_down, activation(shape_.family, u), down_);
    const at::Tensor d_u =
        activation_backward(shape_.family, linear_input_grad(d_down, down_.weight), u);
    linear_weight_grad(d_u, n2, up_);
    at::Tensor into = d_n2.slice(0, begin, end);
    linear_input_grad(d_u, up_.weight, into);
  }
  return d_n2;
}

// dy -> gradient of the up projection's input.
at::Tensor Block::mlp_backward(BlockStash& stash, const at::Tensor& dy, const SliceContext& context,
                               bool fused) {
  restore_mlp(stash, context);
  const bool encoder = shape_.encoder();
  if (encoder) {
    if (!stash.s2.rstd.defined()) norm(norm2_, stash.z, stash.s2);
    stash.norm2 = norm_backward(norm2_, dy, stash.z, stash.s2);
  }
  stash.d_down = encoder ? stash.norm2.input : dy;
  const at::Tensor d_down = gathered(stash.d_down, context);
  PendingTensor input = fused ? begin_gather(up_input(stash), context) : PendingTensor();
  const at::Tensor da = linear_input_grad(d_down, down_.weight);
  stash.d_u = activation_backward(shape_.family, da, stash.u);
  PendingTensor sum = begin_sum(linear_input_grad(stash.d_u, up_.weight));
  if (fused) {
    linear_weight_grad(d_down, stash.a, down_);
    linear_weight_grad(stash.d_u, input.finish(), up_);
    // Nothing else needs these, and they are the largest.
    stash.u = stash.a = stash.d_u = at::Tensor();
  }
  return sum.finish();
}

}  // namespace sluice
