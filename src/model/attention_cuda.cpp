#include "sluice/model/attention_cuda.h"

#include <tuple>

#include "sluice/base/error.h"
#include "sluice/cuda/attention.h"
#include "sluice/cuda/functions.h"
#include "sluice/model/attention_packed.h"

namespace sluice {
namespace {

// The first `count` slices, one after the other.
at::Tensor joined(const std::vector<at::Tensor>& parts, std::size_t count) {
  return count == 1 ? parts[0] : cuda::join_tokens(std::span(parts).first(count));
}

}  // namespace

AttentionOutput attention_cuda(const AttentionInput& input, const Documents& documents,
                               const SliceBounds& bounds) {
  const std::size_t slice = input.keys.size() - 1;
  if (documents.packed) return packed_attention(input, *documents.packed, bounds);
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
  if (documents.packed)
    return packed_attention_backward(d_out, input, output, *documents.packed, bounds, key_gradients,
                                     value_gradients);
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
