#include "sluice/model/tensor_parallel.h"

#include <map>
#include <utility>

#include "sluice/base/error.h"

namespace sluice {
namespace {

Shard bias_of(const Shard& weight) {
  Shard bias = weight;
  bias.whole = {weight.whole[0]};
  return bias;
}

}  // namespace

LinearPart TensorParallel::rows(std::string name, std::int64_t out, std::int64_t in,
                                bool bias) const {
  SLUICE_CHECK(out % size() == 0, "{} has {} rows for {} ranks", name, out, size());
  LinearPart part{std::move(name), {.whole = {out, in}, .range = part_of(out, rank(), size())}};
  if (bias) part.bias = bias_of(part.shard);
  return part;
}

LinearPart TensorParallel::columns(std::string name, std::int64_t out, std::int64_t in,
                                   bool bias) const {
  SLUICE_CHECK(in % size() == 0, "{} has {} columns for {} ranks", name, in, size());
  LinearPart part{std::move(name),
                  {.whole = {out, in}, .dim = 1, .range = part_of(in, rank(), size())}};
  if (bias) part.bias = shared({out}, false);
  return part;
}

LinearPart TensorParallel::heads(std::string name, std::int64_t heads, std::int64_t head_dim,
                                 std::int64_t in, bool bias) const {
  if (heads >= size()) return rows(std::move(name), heads * head_dim, in, bias);
  SLUICE_CHECK(size() % heads == 0, "{} has {} heads for {} ranks", name, heads, size());
  const int holders = size() / static_cast<int>(heads);
  const int head = rank() / holders;
  LinearPart part{std::move(name),
                  {.whole = {heads * head_dim, in},
                   .range = {head * head_dim, (head + 1) * head_dim},
                   .counted = rank() % holders == 0,
                   .sum_first = head * holders,
                   .sum_end = (head + 1) * holders}};
  if (bias) part.bias = bias_of(part.shard);
  return part;
}

Shard TensorParallel::shared(std::vector<std::int64_t> shape, bool of_tokens) const {
  Shard shard = whole_shard(std::move(shape));
  shard.counted = rank() == 0;
  if (of_tokens && sequence_norms_) shard.sum_end = size();
  return shard;
}

PendingTensor TensorParallel::begin_gather(const at::Tensor& x, std::int64_t tokens,
                                           TrafficClass traffic, std::string_view label) const {
  return sequence_norms_ ? group_->begin_all_gather(x, tokens, traffic, label) : PendingTensor(x);
}

PendingTensor TensorParallel::begin_sum(const at::Tensor& addend, TrafficClass traffic,
                                        std::string_view label) const {
  if (size() == 1) return PendingTensor(addend);
  return sequence_norms_ ? group_->begin_reduce_scatter(addend, traffic, label)
                         : group_->begin_all_reduce(addend, traffic, label);
}

at::Tensor TensorParallel::stack(const at::Tensor& mine, TrafficClass traffic,
                                 std::string_view label) const {
  const at::Tensor row = mine.unsqueeze(0);
  return size() == 1 ? row : group_->all_gather(row, size(), traffic, label);
}

void sum_shared_gradients(const std::vector<KeptParameter>& parameters, TensorGroup& group) {
  // Gradients shared by the same ranks go as one message. All ranks have the same parameter order.
  std::map<std::pair<int, int>, std::vector<at::Tensor>> shared;
  for (const KeptParameter& kept : parameters)
    if (const Shard& shard = kept.parameter->shard;
        shard.sum_end - shard.sum_first > 1 && kept.own.count() > 0)
      shared[{shard.sum_first, shard.sum_end}].push_back(kept.gradient);
  for (auto& [ranks, gradients] : shared) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : gradients)
      flat.push_back(gradient.reshape({-1}));
    const at::Tensor sum = sum_in_order(group.exchange(at::cat(flat), ranks.first, ranks.second,
                                                       TrafficClass::norm, "shared gradients"));
    std::int64_t begin = 0;
    for (at::Tensor& gradient : gradients) {
      gradient.copy_(sum.slice(0, begin, begin + gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
  }
}

}  // namespace sluice
