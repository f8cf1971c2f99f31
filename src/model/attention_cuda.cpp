#include "model/attention_cuda.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "cuda/attention.h"
#include "cuda/functions.h"

namespace sluice {
namespace {

// The first `count` slices, one behind the other.
at::Tensor joined(const std::vector<at::Tensor>& parts, std::size_t count) {
  return count == 1 ? parts[0] : cuda::join_tokens(std::span(parts).first(count));
}

// (B, heads, n, head_dim) -> (B n, heads, head_dim).
at::Tensor as_rows(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }

at::Tensor from_rows(const at::Tensor& rows, std::int64_t num_sequences) {
  return rows.unflatten(0, {num_sequences, rows.size(0) / num_sequences}).transpose(1, 2);
}

// The kernel for documents takes heads of a multiple of 8.
at::Tensor padded(const at::Tensor& rows) {
  const std::int64_t rest = rows.size(2) % 8;
  return rest == 0 ? rows : at::constant_pad_nd(rows, {0, 8 - rest}, 0);
}

double scale_of(const at::Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.size(3))); }

// What the queries of packed documents see: of every sequence, from the first token of the document
// that the slice begins in to the end of the slice.
at::Tensor seen_rows(const std::vector<at::Tensor>& parts, const PackedDocuments& packed,
                     const SliceBounds& bounds) {
  const std::size_t slice = parts.size() - 1;
  if (packed.first_key_slice == slice) return as_rows(parts[slice]);
  const at::Tensor all = joined(parts, parts.size());
  std::vector<at::Tensor> rows;
  for (std::size_t s = 0; s < packed.first_keys.size(); ++s)
    rows.push_back(all.select(0, static_cast<std::int64_t>(s))
                       .slice(1, packed.first_keys[s], bounds[slice + 1])
                       .transpose(0, 1));
  return rows.size() == 1 ? rows[0] : at::cat(rows, 0);
}

void add_seen_rows(std::vector<at::Tensor>& totals, const at::Tensor& rows,
                   const PackedDocuments& packed, const SliceBounds& bounds) {
  const std::size_t slice = totals.size() - 1;
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < packed.first_keys.size(); ++s) {
    const std::int64_t first = packed.first_keys[s], end = bounds[slice + 1];
    const at::Tensor own = rows.slice(0, begin, begin + end - first).transpose(0, 1);
    begin += end - first;
    for (std::size_t j = 0; j <= slice; ++j) {
      const std::int64_t from = std::max(first, bounds[j]), to = bounds[j + 1];
      if (from < to)
        totals[j]
            .select(0, static_cast<std::int64_t>(s))
            .slice(1, from - bounds[j], to - bounds[j])
            .add_(own.slice(1, from - first, to - first));
    }
  }
}

}  // namespace

PackedDocuments packed_documents(const Documents& documents, const SliceBounds& bounds,
                                 std::size_t slice, at::Device device) {
  PackedDocuments packed;
  const std::int64_t begin = bounds[slice], end = bounds[slice + 1];
  std::vector<std::int32_t> queries = {0}, keys = {0};
  packed.first_key_slice = slice;
  for (const auto& starts : documents.starts) {
    packed.first_keys.push_back(begin);
    for (std::size_t d = 0; d < starts.size(); ++d) {
      const std::int64_t document_end = d + 1 < starts.size() ? starts[d + 1] : bounds.back();
      const std::int64_t from = std::max(starts[d], begin), to = std::min(document_end, end);
      if (from >= to) continue;
      const std::int64_t first = starts[d];
      if (first < begin) {
        packed.first_keys.back() = first;
        packed.first_key_slice = 0;
      }
      queries.push_back(queries.back() + static_cast<std::int32_t>(to - from));
      keys.push_back(keys.back() + static_cast<std::int32_t>(to - first));
      packed.max_queries = std::max(packed.max_queries, to - from);
      packed.max_keys = std::max(packed.max_keys, to - first);
    }
  }
  // From pinned memory, so that nobody waits for what the GPU does at the moment.
  const auto upload = [&](const std::vector<std::int32_t>& lengths) {
    return at::tensor(lengths, at::kInt).pin_memory().to(device, true);
  };
  packed.cumulative_queries = upload(queries);
  packed.cumulative_keys = upload(keys);
  return packed;
}

AttentionOutput attention_cuda(const AttentionInput& input, const Documents& documents,
                               const SliceBounds& bounds) {
  const std::size_t slice = input.keys.size() - 1;
  if (documents.packed) {
    const PackedDocuments& packed = *documents.packed;
    auto [out, lse, state, unused, mask] = at::_flash_attention_forward(
        padded(as_rows(input.q)), padded(seen_rows(input.keys, packed, bounds)),
        padded(seen_rows(input.values, packed, bounds)), packed.cumulative_queries,
        packed.cumulative_keys, packed.max_queries, packed.max_keys, 0.0, !input.both_ways, false,
        scale_of(input.q));
    // Statistics come as (heads, B n).
    return {from_rows(out.slice(2, 0, input.q.size(3)), input.q.size(0)),
            lse.unflatten(1, {input.q.size(0), input.q.size(2)}).transpose(0, 1).contiguous()};
  }
  cuda::AttentionResult own =
      cuda::attention({input.q, input.keys[slice], input.values[slice], !input.both_ways});
  if (slice > 0) {
    const cuda::AttentionResult before =
        cuda::attention({input.q, joined(input.keys, slice), joined(input.values, slice), false});
    cuda::merge_attention(own.out, own.lse, before.out, before.lse);
  }
  return {own.out, own.lse};
}

bool in_few_calls(const AttentionInput& input, const Documents& documents) {
  return input.q.is_cuda() && (documents.single() || documents.packed);
}

AttentionGradients attention_backward_cuda(const at::Tensor& d_out, const AttentionInput& input,
                                           const AttentionOutput& output,
                                           const Documents& documents, const SliceBounds& bounds,
                                           std::vector<at::Tensor>& key_gradients,
                                           std::vector<at::Tensor>& value_gradients) {
  const std::size_t slice = input.keys.size() - 1;
  AttentionGradients out;
  if (documents.packed) {
    const PackedDocuments& packed = *documents.packed;
    const at::Tensor unused = at::empty({2}, input.q.options().dtype(at::kLong));
    auto [dq, dk, dv] = at::_flash_attention_backward(
        padded(as_rows(d_out)), padded(as_rows(input.q)),
        padded(seen_rows(input.keys, packed, bounds)),
        padded(seen_rows(input.values, packed, bounds)), padded(as_rows(output.out)),
        output.lse.transpose(0, 1).contiguous().flatten(1, 2), packed.cumulative_queries,
        packed.cumulative_keys, packed.max_queries, packed.max_keys, 0.0, !input.both_ways, unused,
        unused, scale_of(input.q));
    const std::int64_t size = input.q.size(3);
    for (std::vector<at::Tensor>* totals : {&key_gradients, &value_gradients})
      for (std::size_t j = 0; j <= slice; ++j)
        if (!totals->at(j).defined())
          totals->at(j) = at::zeros(input.keys[j].sizes(), input.q.options().dtype(at::kFloat));
    add_seen_rows(key_gradients, dk.slice(2, 0, size), packed, bounds);
    add_seen_rows(value_gradients, dv.slice(2, 0, size), packed, bounds);
    out.own = {from_rows(dq.slice(2, 0, size), input.q.size(0)), key_gradients[slice],
               value_gradients[slice]};
    return out;
  }
  const cuda::AttentionResult over_all{output.out, output.lse};
  std::tie(out.own.dq, out.own.dk, out.own.dv) = cuda::attention_backward(
      d_out, {input.q, input.keys[slice], input.values[slice], !input.both_ways}, over_all);
  out.more.dk = key_gradients[slice];
  out.more.dv = value_gradients[slice];
  if (slice == 0) return out;
  auto [dq, dk, dv] = cuda::attention_backward(
      d_out, {input.q, joined(input.keys, slice), joined(input.values, slice), false}, over_all);
  out.more.dq = dq;
  std::vector<std::int64_t> lengths;
  for (std::size_t j = 0; j < slice; ++j)
    lengths.push_back(bounds[j + 1] - bounds[j]);
  cuda::add_keys(dk, dv, lengths, key_gradients, value_gradients);
  return out;
}

}  // namespace sluice
