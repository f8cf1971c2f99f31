#include "sluice/model/attention_packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sluice/base/error.h"
#include "sluice/cuda/attention.h"

namespace sluice {
namespace {

// The log-sum-exp of a padding query. Its weight for any key is exp(-1e30), which is zero, whatever
// else its row holds.
constexpr float kNoWeight = 1e30F;

// (B, heads, n, head_dim) -> (B n, heads, head_dim) and back.
at::Tensor as_rows(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }
at::Tensor from_rows(const at::Tensor& rows, std::int64_t num_sequences) {
  return rows.unflatten(0, {num_sequences, rows.size(0) / num_sequences}).transpose(1, 2);
}

// Uninitialised, with the heads of each token side by side in memory.
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

// Flash attention needs a head size that is a multiple of 8.
at::Tensor padded(const at::Tensor& rows) {
  const std::int64_t rest = rows.size(2) % 8;
  return rest == 0 ? rows : at::constant_pad_nd(rows, {0, 8 - rest}, 0);
}

double scale_of(const at::Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.size(3))); }

// Calls each(sequence, j, from, to, row): queries of slice `slice` see rows [from, to) of slice j
// of a sequence, which start at `row` among all rows that they see.
template <typename Each>
std::int64_t for_seen_rows(const PackedCalls& calls, const SliceBounds& bounds, std::size_t slice,
                           const Each& each) {
  std::int64_t row = 0;
  for (std::size_t s = 0; s < calls.first_keys.size(); ++s)
    for (std::size_t j = 0; j <= slice; ++j) {
      const std::int64_t from = std::max(calls.first_keys[s], bounds[j]), to = bounds[j + 1];
      if (from >= to) continue;
      each(static_cast<std::int64_t>(s), j, from - bounds[j], to - bounds[j], row);
      row += to - from;
    }
  return row;
}

// Keys or values as flash attention wants them.
at::Tensor seen_rows(const std::vector<at::Tensor>& parts, const PackedCalls& calls,
                     const SliceBounds& bounds) {
  const std::size_t slice = parts.size() - 1;
  if (!calls.earlier_keys) return as_rows(parts[slice]);
  const at::Tensor& own = parts[slice];
  const at::Tensor rows =
      at::empty({calls.cumulative_keys.back(), own.size(1), own.size(3)}, own.options());
  for_seen_rows(calls, bounds, slice, [&](auto sequence, auto j, auto from, auto to, auto row) {
    rows.slice(0, row, row + to - from)
        .copy_(parts[j].select(0, sequence).slice(1, from, to).transpose(0, 1));
  });
  return rows;
}

// Takes the gradient of all seen rows. Adds the part of earlier slices to `totals` and returns the
// part of the slice itself.
at::Tensor own_gradient(const at::Tensor& rows, const at::Tensor& own, const PackedCalls& calls,
                        const SliceBounds& bounds, std::vector<at::Tensor>& totals) {
  if (!calls.earlier_keys) return from_rows(rows, own.size(0));
  const std::size_t slice = totals.size() - 1;
  at::Tensor gradient = empty_heads(own);
  for_seen_rows(calls, bounds, slice, [&](auto sequence, auto j, auto from, auto to, auto row) {
    const at::Tensor part = rows.slice(0, row, row + to - from).transpose(0, 1);
    const at::Tensor place =
        (j == slice ? gradient : totals[j]).select(0, sequence).slice(1, from, to);
    if (j == slice)
      place.copy_(part);
    else
      place.add_(part);
  });
  return gradient;
}

at::Tensor rows_of(const at::Tensor& x, const LongDocument& document) {
  return x.slice(0, document.sequence, document.sequence + 1)
      .slice(2, document.begin, document.begin + document.length);
}

// A view of memory at `place` + `offset`, in the shape of the heads of `x`: `num_rows` rows of
// `row` elements.
at::Tensor heads_in_rows(const at::Tensor& x, const at::Tensor& place, std::int64_t row,
                         std::int64_t num_rows, std::int64_t offset) {
  const std::int64_t heads = x.size(1), size = x.size(3);
  return place.as_strided({1, heads, num_rows, size}, {num_rows * row, size, row, 1},
                          place.storage_offset() + offset);
}

// The rows of a long document's call, taken from tensors (B, heads, n, head_dim) that lie side by
// side in rows of memory. cuDNN's plans depend on strides, so the strides here depend on the length
// alone: tensors that lie differently, or have too few rows after the document, are copied into
// rows like these.
std::vector<at::Tensor> call_rows(const std::vector<at::Tensor>& all,
                                  const LongDocument& document) {
  const std::int64_t sequences = all[0].size(0), length = all[0].size(2);
  std::int64_t row = 0;
  for (const at::Tensor& x : all)
    row += x.size(1) * x.size(3);
  const std::int64_t first = document.sequence * length + document.begin;
  bool there = first + document.padded <= sequences * length;
  for (const at::Tensor& x : all)
    there = there && x.strides() == at::IntArrayRef({length * row, x.size(3), row, 1});
  std::vector<at::Tensor> out;
  if (there) {
    for (const at::Tensor& x : all)
      out.push_back(heads_in_rows(x, x, row, document.padded, first * row));
    return out;
  }
  const at::Tensor copy = at::empty({document.padded, row}, all[0].options());
  copy.slice(0, document.length).zero_();
  std::int64_t column = 0;
  for (const at::Tensor& x : all) {
    out.push_back(heads_in_rows(x, copy, row, document.padded, column));
    out.back().slice(2, 0, document.length).copy_(rows_of(x, document));
    column += x.size(1) * x.size(3);
  }
  return out;
}

cuda::AttentionCall call_of(const AttentionInput& input, const LongDocument& document) {
  std::vector<at::Tensor> rows =
      call_rows({input.q, input.keys.back(), input.values.back()}, document);
  return {.q = rows[0], .k = rows[1], .v = rows[2], .causal = true};
}

void compute_long(const AttentionInput& input, const LongDocument& document,
                  AttentionOutput& output) {
  const cuda::AttentionResult result = cuda::attention(call_of(input, document));
  rows_of(output.out, document).copy_(result.out.slice(2, 0, document.length));
  rows_of(output.lse, document).copy_(result.lse.slice(2, 0, document.length));
}

void compute_long_backward(const at::Tensor& d_out, const AttentionInput& input,
                           const AttentionOutput& output, const LongDocument& document,
                           cuda::HeadGradients& gradients) {
  const at::Tensor lse =
      at::full({1, output.lse.size(1), document.padded}, kNoWeight, output.lse.options());
  lse.slice(2, 0, document.length).copy_(rows_of(output.lse, document));
  const auto [dq, dk, dv] =
      cuda::attention_backward(call_rows({d_out}, document)[0], call_of(input, document),
                               {call_rows({output.out}, document)[0], lse});
  rows_of(gradients.dq, document).copy_(dq.slice(2, 0, document.length));
  rows_of(gradients.dk, document).copy_(dk.slice(2, 0, document.length));
  rows_of(gradients.dv, document).copy_(dv.slice(2, 0, document.length));
}

// The length of the call for a document with `length` tokens in a slice; 0: it is not long.
std::int64_t padded_length(const std::vector<std::int64_t>& lengths, std::int64_t length) {
  if (lengths.empty() || length < lengths.front()) return 0;
  const auto found = std::lower_bound(lengths.begin(), lengths.end(), length);
  return found == lengths.end() ? 0 : *found;
}

}  // namespace

std::vector<std::int64_t> long_lengths(const SliceBounds& bounds, std::int64_t shortest,
                                       std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  if (shortest <= 0) return lengths;
  std::int64_t last = 0;
  for (std::size_t c = 0; c + 1 < bounds.size(); ++c) {
    const std::int64_t length = bounds[c + 1] - bounds[c];
    if (length >= shortest && length <= longest) lengths.push_back(length);
    last = std::max(last, length);
  }
  last = std::min(last, longest);
  for (std::int64_t length = shortest; length <= last;) {
    lengths.push_back(length);
    const auto step = static_cast<std::int64_t>(
        std::max<std::uint64_t>(std::bit_floor(static_cast<std::uint64_t>(length)) / 8, 1));
    length = (length / step + 1) * step;
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

std::vector<std::int64_t> long_lengths(const ModelShape& shape, std::int64_t tensor,
                                       at::ScalarType dtype, const SliceBounds& bounds,
                                       std::int64_t shortest) {
  if (shape.encoder() || shape.heads == 0) return {};  // the user's own layers may have no heads
  const LocalShape local = local_shape(shape, tensor);
  if (!cuda::takes_cudnn(dtype, local.head_dim)) return {};
  // Attention kernels compute the distance between two elements in 32 bits.
  return long_lengths(bounds, shortest, std::numeric_limits<std::int32_t>::max() / local.qkv_dim());
}

PackedCalls packed_calls(const Documents& documents, const SliceBounds& bounds, std::size_t slice,
                         const std::vector<std::int64_t>& lengths) {
  PackedCalls calls;
  const std::int64_t begin = bounds[slice], end = bounds[slice + 1];
  const auto add_entry = [&](std::int64_t queries, std::int64_t keys) {
    calls.cumulative_queries.push_back(calls.cumulative_queries.back() +
                                       static_cast<std::int32_t>(queries));
    calls.cumulative_keys.push_back(calls.cumulative_keys.back() + static_cast<std::int32_t>(keys));
  };
  for (std::size_t s = 0; s < documents.starts.size(); ++s) {
    const auto& starts = documents.starts[s];
    calls.first_keys.push_back(begin);
    for (std::size_t d = 0; d < starts.size(); ++d) {
      const std::int64_t first = starts[d];
      const std::int64_t document_end = d + 1 < starts.size() ? starts[d + 1] : bounds.back();
      const std::int64_t from = std::max(first, begin), to = std::min(document_end, end);
      if (from >= to) continue;
      const std::int64_t padded = first < begin ? 0 : padded_length(lengths, to - from);
      if (padded > 0) {
        calls.long_documents.push_back(
            {static_cast<std::int64_t>(s), from - begin, to - from, padded});
        add_entry(to - from, 0);
        add_entry(0, to - from);
        continue;
      }
      if (first < begin) {
        calls.first_keys.back() = first;
        calls.earlier_keys = true;
      }
      add_entry(to - from, to - first);
      calls.max_queries = std::max(calls.max_queries, to - from);
      calls.max_keys = std::max(calls.max_keys, to - first);
    }
  }
  // If the maximum is 1, flash attention assumes exactly one query in every entry. That is true
  // only without long documents.
  if (calls.max_queries == 1 && !calls.long_documents.empty()) calls.max_queries = 2;
  return calls;
}

PackedDocuments packed_documents(PackedCalls calls, at::Device device) {
  PackedDocuments packed;
  // From pinned memory, so that the host does not wait for the GPU's current work.
  const auto upload = [&](const std::vector<std::int32_t>& lengths) {
    const at::Tensor here = at::tensor(lengths, at::kInt);
    return device.is_cuda() ? here.pin_memory().to(device, true) : here;
  };
  if (calls.max_queries > 0) {
    packed.cumulative_queries = upload(calls.cumulative_queries);
    packed.cumulative_keys = upload(calls.cumulative_keys);
  }
  packed.calls = std::move(calls);
  return packed;
}

AttentionOutput packed_attention(const AttentionInput& input, const PackedDocuments& packed,
                                 const SliceBounds& bounds) {
  const PackedCalls& calls = packed.calls;
  const at::Tensor& q = input.q;
  SLUICE_CHECK(!input.both_ways || calls.long_documents.empty(), "{} long documents, both ways",
               calls.long_documents.size());
  AttentionOutput output;
  if (calls.max_queries > 0) {
    auto [out, lse, state, unused, mask] = at::_flash_attention_forward(
        padded(as_rows(q)), padded(seen_rows(input.keys, calls, bounds)),
        padded(seen_rows(input.values, calls, bounds)), packed.cumulative_queries,
        packed.cumulative_keys, calls.max_queries, calls.max_keys, 0.0, !input.both_ways, false,
        scale_of(q));
    // Statistics come as (heads, B n).
    output = {from_rows(out.slice(2, 0, q.size(3)), q.size(0)),
              lse.unflatten(1, {q.size(0), q.size(2)}).transpose(0, 1).contiguous()};
  } else {
    output = {empty_heads(q),
              at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat))};
  }
  for (const LongDocument& document : calls.long_documents)
    compute_long(input, document, output);
  return output;
}

AttentionGradients packed_attention_backward(const at::Tensor& d_out, const AttentionInput& input,
                                             const AttentionOutput& output,
                                             const PackedDocuments& packed,
                                             const SliceBounds& bounds,
                                             std::vector<at::Tensor>& key_gradients,
                                             std::vector<at::Tensor>& value_gradients) {
  const PackedCalls& calls = packed.calls;
  const std::size_t slice = input.keys.size() - 1;
  const at::Tensor &q = input.q, &k = input.keys[slice], &v = input.values[slice];
  for (std::vector<at::Tensor>* totals : {&key_gradients, &value_gradients})
    for (std::size_t j = 0; j < slice; ++j)
      if (!totals->at(j).defined())
        totals->at(j) = at::zeros(input.keys[j].sizes(), q.options().dtype(at::kFloat));
  AttentionGradients gradients;
  gradients.more = {.dq = {}, .dk = key_gradients[slice], .dv = value_gradients[slice]};
  if (calls.max_queries > 0) {
    const at::Tensor unused = at::empty({2}, q.options().dtype(at::kLong));
    auto [dq, dk, dv] = at::_flash_attention_backward(
        padded(as_rows(d_out)), padded(as_rows(q)), padded(seen_rows(input.keys, calls, bounds)),
        padded(seen_rows(input.values, calls, bounds)), padded(as_rows(output.out)),
        output.lse.transpose(0, 1).contiguous().flatten(1, 2), packed.cumulative_queries,
        packed.cumulative_keys, calls.max_queries, calls.max_keys, 0.0, !input.both_ways, unused,
        unused, scale_of(q));
    const std::int64_t size = q.size(3);
    gradients.own = {from_rows(dq.slice(2, 0, size), q.size(0)),
                     own_gradient(dk.slice(2, 0, size), k, calls, bounds, key_gradients),
                     own_gradient(dv.slice(2, 0, size), v, calls, bounds, value_gradients)};
  } else {
    gradients.own = {empty_heads(q), empty_heads(k), empty_heads(v)};
  }
  for (const LongDocument& document : calls.long_documents)
    compute_long_backward(d_out, input, output, document, gradients.own);
  return gradients;
}

void make_attention_plans(const std::vector<std::int64_t>& lengths, const LocalShape& shape,
                          const at::TensorOptions& options) {
  if (lengths.empty()) return;
  const std::int64_t longest = lengths.back();
  const auto split = [&](const at::Tensor& rows, std::int64_t heads) {
    return rows.unflatten(1, {heads, shape.head_dim}).unsqueeze(0).transpose(1, 2);
  };
  const auto parts = at::zeros({longest, shape.qkv_dim()}, options)
                         .split_with_sizes({shape.q_dim(), shape.kv_dim(), shape.kv_dim()}, 1);
  const AttentionInput input{.q = split(parts[0], shape.heads),
                             .keys = {split(parts[1], shape.kv_heads)},
                             .values = {split(parts[2], shape.kv_heads)}};
  AttentionOutput output{empty_heads(input.q),
                         at::empty({1, shape.heads, longest}, options.dtype(at::kFloat))};
  cuda::HeadGradients gradients{empty_heads(input.q), empty_heads(input.keys[0]),
                                empty_heads(input.keys[0])};
  // The longest first: the others can reuse the memory of its call.
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    const LongDocument document{.length = *length, .padded = *length};
    compute_long(input, document, output);
    compute_long_backward(output.out, input, output, document, gradients);
  }
}

}  // namespace sluice
