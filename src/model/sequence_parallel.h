// How ranks share sequences (Ulysses): outside attention each has an equal part of the tokens, and
// all heads; in attention it has all tokens, and some of the heads (cost/head_share.h). In between,
// all-to-alls exchange heads for tokens: two in a block's forward and two in its backward, eight
// tensors in all (q, k, v, the output, and their gradients).
#pragma once

#include <ATen/ATen.h>

#include <string_view>

#include "sluice/comm/tensors/group.h"
#include "sluice/cost/model_shape.h"

namespace sluice {

// T is a rank's tokens and R = degree * T those of the row. `local` is what a tensor rank has.

// q, k and v of all heads, (T, qkv_dim) -> of this rank's, (R, columns): q, k and v side by side.
at::Tensor tokens_to_heads(const at::Tensor& qkv, TensorGroup& group, const LocalShape& local,
                           std::string_view label);
// The gradient of what that returned -> that of its input. Where several ranks had a key head,
// their gradients are added up in rank order.
at::Tensor heads_to_qkv(const at::Tensor& d_heads, TensorGroup& group, const LocalShape& local,
                        std::string_view label);

// Attention's output of this rank's heads, (R, columns) -> of all heads, (T, q_dim); and back.
at::Tensor heads_to_tokens(const at::Tensor& heads, TensorGroup& group, std::string_view label);
at::Tensor queries_to_heads(const at::Tensor& tokens, TensorGroup& group, std::string_view label);

}  // namespace sluice
