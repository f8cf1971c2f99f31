// What a layer must know about the slice it works on.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "sluice/model/attention.h"
#include "sluice/model/functions.h"
#include "sluice/model/tensor_parallel.h"
#include "sluice/run/plan.h"

namespace sluice {

struct SliceContext {
  const RunPlan* plan = nullptr;
  std::int64_t num_sequences = 1;  // B: sequences of the microbatch
  std::size_t slice = 0;
  SliceBounds bounds;  // {0, T} where the microbatch is not cut
  Documents documents;
  // The ranks that share the microbatch's one row of sequences, each an equal part of it; null:
  // this one alone. Attention is over all tokens of the row, and the documents are the row's.
  TensorGroup* group = nullptr;
  at::Tensor positions;  // (B, n), restarting in every document
  Rotation rotation;     // by these positions; empty where the model has learned ones

  std::size_t num_slices() const { return bounds.size() - 1; }
  bool last_slice() const { return slice + 1 == num_slices(); }
  std::int64_t length() const { return bounds[slice + 1] - bounds[slice]; }  // n
  std::int64_t num_tokens() const { return num_sequences * length(); }       // T of this slice
  int degree() const { return group ? group->size() : 1; }
  TokenShare share() const { return {num_tokens(), degree()}; }
  // What attention is over: the bounds of whole rows.
  SliceBounds row_bounds() const { return group ? SliceBounds{0, length() * degree()} : bounds; }
};

// The positions of slice [begin, end) of every sequence, restarting where a document starts.
at::Tensor positions_of(std::int64_t num_sequences, std::int64_t begin, std::int64_t end,
                        const Documents& documents);

// Element size times number of elements; 0 if the tensor is undefined.
std::int64_t held_bytes(const at::Tensor& tensor);

}  // namespace sluice
