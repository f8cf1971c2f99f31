// Packed documents on a GPU, in half precision. Long ones are computed by cuDNN, one call each; all
// the others by one call of flash attention, which takes the lengths of all of them.
//
// cuDNN makes a plan for every new shape, which takes longer than many calls. So a long document is
// computed with the rows that follow it, up to the next length of a small grid, for which plans are
// made at the start. Causal queries do not see what follows them, so that padding changes nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "cost/model_shape.h"
#include "model/attention.h"
#include "model/attention_cuda.h"

namespace sluice {

// From so many tokens on a document is long.
inline constexpr std::int64_t kLongDocument = 2048;

// The lengths of cuDNN's calls, ascending: eight to a doubling from `shortest` on, and the lengths
// of the slices, none above `longest`. None at all where no slice is that long, or `shortest` is 0:
// then no document is long.
std::vector<std::int64_t> long_lengths(const SliceBounds& bounds, std::int64_t shortest,
                                       std::int64_t longest);
// The same for a model's attention on a tensor rank: none where cuDNN cannot take it, or where
// tokens see later ones.
std::vector<std::int64_t> long_lengths(const ModelShape& shape, std::int64_t tensor,
                                       at::ScalarType dtype, const SliceBounds& bounds,
                                       std::int64_t shortest);

struct LongDocument {
  std::int64_t sequence = 0;
  std::int64_t begin = 0, length = 0;  // its rows in the slice
  std::int64_t padded = 0;             // rows of its call
};

// What is computed by which call, for the documents of a slice: a document is long where it begins
// in the slice and `lengths` has one for the part of it that lies there.
struct PackedCalls {
  std::vector<LongDocument> long_documents;
  // Of flash attention's entries, one more than there are: queries are all rows of the slice, keys
  // those of all sequences from first_keys on. A long document is one entry of queries without keys
  // and one of keys without queries: so it takes its place, and nobody computes it.
  std::vector<std::int32_t> cumulative_queries = {0}, cumulative_keys = {0};
  std::int64_t max_queries = 0, max_keys = 0;  // of its documents; 0: there is no such call
  std::vector<std::int64_t> first_keys;  // of each sequence: where the first document seen starts
  bool earlier_keys = false;             // some of them are in earlier slices
};
PackedCalls packed_calls(const Documents& documents, const SliceBounds& bounds, std::size_t slice,
                         const std::vector<std::int64_t>& lengths);

struct PackedDocuments {
  PackedCalls calls;
  at::Tensor cumulative_queries, cumulative_keys;  // there, 32-bit
};
PackedDocuments packed_documents(PackedCalls calls, at::Device device);

// What attention_cuda.h promises, for packed documents.
AttentionOutput packed_attention(const AttentionInput& input, const PackedDocuments& packed,
                                 const SliceBounds& bounds);
AttentionGradients packed_attention_backward(const at::Tensor& d_out, const AttentionInput& input,
                                             const AttentionOutput& output,
                                             const PackedDocuments& packed,
                                             const SliceBounds& bounds,
                                             std::vector<at::Tensor>& key_gradients,
                                             std::vector<at::Tensor>& value_gradients);

// Lets cuDNN make its plans for documents of these lengths, forward and backward, by calls like
// those above. Plans are the calling thread's own.
void make_attention_plans(const std::vector<std::int64_t>& lengths, const LocalShape& shape,
                          const at::TensorOptions& options);

}  // namespace sluice
