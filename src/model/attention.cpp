#include "sluice/model/attention.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/cuda/attention.h"
#include "sluice/model/attention_cuda.h"

namespace sluice {
namespace {

// One call: rows [query_begin, query_end) of the slice against keys [key_begin, key_end) of slice
// `part`, of sequences [sequence, sequence_end).
struct Piece {
  std::int64_t sequence, sequence_end;
  std::int64_t query_begin, query_end;
  std::size_t part;
  std::int64_t key_begin, key_end;
  bool causal;
};

void add_pieces(std::vector<Piece>& pieces, std::int64_t sequence, std::int64_t sequence_end,
                std::int64_t document_begin, std::int64_t document_end, const SliceBounds& bounds,
                std::size_t slice, bool causal) {
  const std::int64_t begin = std::max(document_begin, bounds[slice]);
  const std::int64_t end = std::min(document_end, bounds[slice + 1]);
  if (begin >= end) return;
  const std::int64_t offset = bounds[slice];
  for (std::size_t part = 0; part < slice; ++part) {
    const std::int64_t key_begin = std::max(document_begin, bounds[part]);
    const std::int64_t key_end = std::min(document_end, bounds[part + 1]);
    if (key_begin < key_end)
      pieces.push_back({sequence, sequence_end, begin - offset, end - offset, part,
                        key_begin - bounds[part], key_end - bounds[part], false});
  }
  pieces.push_back({sequence, sequence_end, begin - offset, end - offset, slice, begin - offset,
                    end - offset, causal});
}

std::vector<Piece> pieces_of(const AttentionInput& input, const Documents& documents,
                             const SliceBounds& bounds) {
  std::vector<Piece> pieces;
  const std::int64_t num_sequences = input.q.size(0), length = bounds.back();
  const std::size_t slice = input.keys.size() - 1;
  const bool causal = !input.both_ways;
  SLUICE_CHECK(causal || bounds.size() == 2, "attention both ways over {} slices",
               bounds.size() - 1);
  if (documents.single()) {
    add_pieces(pieces, 0, num_sequences, 0, length, bounds, slice, causal);
    return pieces;
  }
  SLUICE_CHECK(static_cast<std::int64_t>(documents.starts.size()) == num_sequences,
               "documents of {} sequences for {}", documents.starts.size(), num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    const auto& starts = documents.starts[static_cast<std::size_t>(s)];
    for (std::size_t d = 0; d < starts.size(); ++d)
      add_pieces(pieces, s, s + 1, starts[d], d + 1 < starts.size() ? starts[d + 1] : length,
                 bounds, slice, causal);
  }
  return pieces;
}

at::Tensor rows(const at::Tensor& x, const Piece& piece) {
  return x.slice(0, piece.sequence, piece.sequence_end)
      .slice(2, piece.query_begin, piece.query_end);
}

// Keys or values of the piece, each repeated for the query heads that share it.
at::Tensor keys_of(const at::Tensor& x, const Piece& piece, std::int64_t heads) {
  const at::Tensor part =
      x.slice(0, piece.sequence, piece.sequence_end).slice(2, piece.key_begin, piece.key_end);
  const std::int64_t shared = heads / x.size(1);
  return shared == 1 ? part : part.repeat_interleave(shared, 1);
}

// Sums a gradient by query heads over the query heads that share a key head.
at::Tensor of_shared(const at::Tensor& gradient, std::int64_t kv_heads) {
  const std::int64_t shared = gradient.size(1) / kv_heads;
  if (shared == 1) return gradient;
  return gradient.to(at::kFloat)
      .view({gradient.size(0), kv_heads, shared, gradient.size(2), gradient.size(3)})
      .sum(2);
}

void add_key_gradient(at::Tensor& total, const at::Tensor& gradient, std::int64_t kv_heads,
                      const Piece& piece) {
  const at::Tensor part = of_shared(gradient, kv_heads);
  if (!total.defined())
    total = part.to(at::kFloat);
  else
    total.slice(0, piece.sequence, piece.sequence_end)
        .slice(2, piece.key_begin, piece.key_end)
        .add_(part);
}

// One call. Keys and values have as many heads as queries.
AttentionOutput call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  if (q.is_cuda()) {
    const cuda::AttentionResult result = cuda::attention({q, k, v, causal});
    return {result.out, result.lse};
  }
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal);
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> call_backward(
    const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const AttentionOutput& output, bool causal) {
  if (q.is_cuda())
    return cuda::attention_backward(d_out, {q, k, v, causal}, {output.out, output.lse});
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(d_out, q, k, v, output.out,
                                                                  output.lse, 0.0, causal);
}

}  // namespace

AttentionOutput attention(const AttentionInput& input, const Documents& documents,
                          const SliceBounds& bounds) {
  if (in_few_calls(input, documents)) return attention_cuda(input, documents, bounds);
  const at::Tensor& q = input.q;
  const std::vector<Piece> pieces = pieces_of(input, documents, bounds);
  if (pieces.size() == 1) {  // covers all rows; part > 0 if a document starts with a later slice
    const Piece& piece = pieces[0];
    return call(q, keys_of(input.keys[piece.part], piece, q.size(1)),
                keys_of(input.values[piece.part], piece, q.size(1)), piece.causal);
  }
  AttentionOutput total;
  total.out = at::zeros(q.sizes(), q.options().dtype(at::kFloat));
  total.lse = at::full({q.size(0), q.size(1), q.size(2)}, -std::numeric_limits<float>::infinity(),
                       q.options().dtype(at::kFloat));
  for (const Piece& piece : pieces) {
    const auto [out, lse] =
        call(rows(q, piece).contiguous(), keys_of(input.keys[piece.part], piece, q.size(1)),
             keys_of(input.values[piece.part], piece, q.size(1)), piece.causal);
    at::Tensor out_so_far = rows(total.out, piece), lse_so_far = rows(total.lse, piece);
    const at::Tensor merged = at::logaddexp(lse_so_far, lse);
    out_so_far.mul_((lse_so_far - merged).exp_().unsqueeze(-1));
    out_so_far.addcmul_(out.to(at::kFloat), (lse - merged).exp_().unsqueeze(-1));
    lse_so_far.copy_(merged);
  }
  total.out = total.out.to(q.scalar_type());
  return total;
}

at::Tensor attention_backward(const at::Tensor& d_out, const AttentionInput& input,
                              const AttentionOutput& output, const Documents& documents,
                              const SliceBounds& bounds, std::vector<at::Tensor>& key_gradients,
                              std::vector<at::Tensor>& value_gradients) {
  const at::Tensor& q = input.q;
  const std::vector<Piece> pieces = pieces_of(input, documents, bounds);
  const std::int64_t kv_heads = input.keys[0].size(1);
  const bool whole = pieces.size() == 1;
  at::Tensor dq = whole ? at::Tensor() : at::zeros(q.sizes(), q.options().dtype(at::kFloat));
  for (const Piece& piece : pieces) {
    const auto [dq_part, dk, dv] = call_backward(
        rows(d_out, piece), rows(q, piece), keys_of(input.keys[piece.part], piece, q.size(1)),
        keys_of(input.values[piece.part], piece, q.size(1)),
        {rows(output.out, piece), rows(output.lse, piece)}, piece.causal);
    if (whole)
      dq = dq_part;
    else
      rows(dq, piece).add_(dq_part);
    add_key_gradient(key_gradients[piece.part], dk, kv_heads, piece);
    add_key_gradient(value_gradients[piece.part], dv, kv_heads, piece);
  }
  return dq.to(q.scalar_type());
}

}  // namespace sluice
