// How the tensor ranks of a stage share its layers. The columns of a matmul's input or output are
// divided: heads in attention, the hidden width in the MLP, words in embedding and head. Between
// the matmuls every rank works on all tokens, or, with sequence-parallel norms, on its share of
// them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/comm/tensors/group.h"
#include "sluice/cost/model_shape.h"
#include "sluice/model/functions.h"
#include "sluice/model/parameter.h"

namespace sluice {

class TensorParallel {
 public:
  // A rank on its own.
  TensorParallel() = default;
  // The group outlives it.
  TensorParallel(TensorGroup& group, bool sequence_norms)
      : group_(&group), sequence_norms_(sequence_norms && group.size() > 1) {}

  int size() const { return group_ ? group_->size() : 1; }
  int rank() const { return group_ ? group_->rank() : 0; }
  bool sequence_norms() const { return sequence_norms_; }

  // This rank's part of a weight that is divided by rows or by columns, and of its bias, if any.
  LinearPart rows(std::string name, std::int64_t out, std::int64_t in, bool bias) const;
  LinearPart columns(std::string name, std::int64_t out, std::int64_t in, bool bias) const;
  // Rows of whole heads. If there are fewer heads than ranks, neighbouring ranks hold the same
  // head.
  LinearPart heads(std::string name, std::int64_t heads, std::int64_t head_dim, std::int64_t in,
                   bool bias) const;
  // A weight that every rank holds. It is used between the matmuls, where ranks may have different
  // tokens (`of_tokens`), or it sees the same values on all ranks.
  Shard shared(std::vector<std::int64_t> shape, bool of_tokens) const;

  // The tokens, out of `tokens`, that this rank has between the matmuls.
  RowRange own_tokens(std::int64_t tokens) const {
    return sequence_norms_ ? group_->own_rows(tokens) : RowRange{0, tokens};
  }
  // This rank's tokens between the matmuls -> all tokens, as input of a matmul.
  PendingTensor begin_gather(const at::Tensor& x, std::int64_t tokens, TrafficClass traffic,
                             std::string_view label) const;
  at::Tensor gather(const at::Tensor& x, std::int64_t tokens, TrafficClass traffic,
                    std::string_view label) const {
    return begin_gather(x, tokens, traffic, label).finish();
  }
  // Each rank's addend to a matmul's output (all tokens) -> their sum, for this rank's tokens
  // between the matmuls.
  PendingTensor begin_sum(const at::Tensor& addend, TrafficClass traffic,
                          std::string_view label) const;
  at::Tensor sum(const at::Tensor& addend, TrafficClass traffic, std::string_view label) const {
    return begin_sum(addend, traffic, label).finish();
  }
  // Every rank's (n, ...), stacked: (size, n, ...).
  at::Tensor stack(const at::Tensor& mine, TrafficClass traffic, std::string_view label) const;

 private:
  TensorGroup* group_ = nullptr;
  bool sequence_norms_ = false;
};

// Adds up the gradients of weights that several tensor ranks hold, where each rank has a part of
// the sum; of sharded parameters, those of the own rows. Every tensor rank of the stage calls it,
// after all weight gradients are computed.
void sum_shared_gradients(const std::vector<KeptParameter>& parameters, TensorGroup& group);

}  // namespace sluice
