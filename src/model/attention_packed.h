// Packed documents on a GPU, in half precision. cuDNN computes the long ones, one call each. A
// single call of flash attention, which takes the lengths of all its documents, computes the
// others.
//
// cuDNN makes a plan for every new shape, which takes longer than many calls. So a long document is
// computed with the rows that follow it, up to the next length of a small grid, for which plans are
// made at the start. Causal queries do not see what follows them, so that padding changes nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/model/attention_input.h"

namespace sluice {

// A document of at least this many tokens is long.
inline constexpr std::int64_t kLongDocument = 2048;

// The lengths of cuDNN's calls, ascending: eight per doubling from `shortest` on, and the lengths
// of the slices, none above `longest`. Empty if no slice is as long as `shortest`, or if `shortest`
// is 0: then no document is long.
std::vector<std::int64_t> long_lengths(const SliceBounds& bounds, std::int64_t shortest,
                                       std::int64_t longest);
// The same for a model's attention on a tensor rank. Empty if cuDNN does not support it, or if
// tokens see later ones.
std::vector<std::int64_t> long_lengths(const ModelShape& shape, std::int64_t tensor,
                                       at::ScalarType dtype, const SliceBounds& bounds,
                                       std::int64_t shortest);

struct LongDocument {
  std::int64_t sequence = 0;
  std::int64_t begin = 0, length = 0;  // its rows in the slice
  std::int64_t padded = 0;             // rows of its call
};

// Which call computes which documents of a slice. A document is long if it begins in the slice and
// `lengths` has a length for its part in the slice.
struct PackedCalls {
  std::vector<LongDocument> long_documents;
  // The cumulative lengths of flash attention's entries, one number more than there are entries.
  // Queries are all rows of the slice, keys the rows of all sequences from first_keys on. A long
  // document has two entries, one with its queries and no keys, one with its keys and no queries:
  // it keeps its place, but this call does not compute it.
  std::vector<std::int32_t> cumulative_queries = {0}, cumulative_keys = {0};
  std::int64_t max_queries = 0, max_keys = 0;  // of its documents; 0: no such call
  std::vector<std::int64_t> first_keys;  // of each sequence: where the first document seen starts
  bool earlier_keys = false;             // some of them are in earlier slices
};
PackedCalls packed_calls(const Documents& documents, const SliceBounds& bounds, std::size_t slice,
                         const std::vector<std::int64_t>& lengths);

struct PackedDocuments {
  PackedCalls calls;
  at::Tensor cumulative_queries, cumulative_keys;  // on the device, 32-bit
};
PackedDocuments packed_documents(PackedCalls calls, at::Device device);

// The same as in attention_cuda.h, for packed documents.
AttentionOutput packed_attention(const AttentionInput& input, const PackedDocuments& packed,
                                 const SliceBounds& bounds);
AttentionGradients packed_attention_backward(const at::Tensor& d_out, const AttentionInput& input,
                                             const AttentionOutput& output,
                                             const PackedDocuments& packed,
                                             const SliceBounds& bounds,
                                             std::vector<at::Tensor>& key_gradients,
                                             std::vector<at::Tensor>& value_gradients);

// Makes cuDNN's plans for documents of these lengths, forward and backward, by calls like those
// above. Plans belong to the calling thread.
void make_attention_plans(const std::vector<std::int64_t>& lengths, const LocalShape& shape,
                          const at::TensorOptions& options);

}  // namespace sluice
