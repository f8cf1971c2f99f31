// Collectives over tensors. Sums are those of the parts in ascending rank order, in fp32, made by
// the one rank that owns the rows: every rank ends with the same bits, and they depend on neither
// timing nor backend.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "cost/traffic.h"

namespace sluice {

// The bytes of a contiguous tensor.
std::span<std::byte> tensor_bytes(const at::Tensor& tensor);

struct RowRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};
// Part `index` of `rows` cut into `parts`, as equal as possible.
constexpr RowRange part_of(std::int64_t rows, int index, int parts) {
  return {rows * index / parts, rows * (index + 1) / parts};
}

class TensorGroup;

// A collective under way. Every rank begins the same ones in the same order, and finishes each.
class PendingTensor {
 public:
  PendingTensor() = default;
  // One that has arrived.
  explicit PendingTensor(at::Tensor tensor) : input_(std::move(tensor)) {}
  // Blocks for the other ranks.
  at::Tensor finish();

 private:
  friend class TensorGroup;
  enum class Kind { ready, gather, reduce_scatter, all_reduce };
  Kind kind_ = Kind::ready;
  TensorGroup* group_ = nullptr;
  at::Tensor input_;                // being sent
  at::Tensor whole_;                // being gathered
  std::vector<at::Tensor> pieces_;  // by rank, of the rows of this one
  std::vector<Request> requests_;
  TrafficClass traffic_ = TrafficClass::tensor_layer;
  std::string label_;
};

// The ranks of a communicator, exchanging tensors. One that was made empty is a group of one, in
// which nothing moves and every collective gives its argument back.
class TensorGroup {
 public:
  TensorGroup() = default;
  // Both outlive the group.
  TensorGroup(Communicator& ranks, Traffic& traffic) : ranks_(&ranks), traffic_(&traffic) {}

  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  // The rows of this rank, of so many.
  RowRange own_rows(std::int64_t rows) const { return part_of(rows, rank(), size()); }

  // Every rank's own_rows (n, ...) -> all rows, `rows` of them. Inputs are not written to.
  at::Tensor all_gather(const at::Tensor& part, std::int64_t rows, TrafficClass traffic,
                        std::string_view label) {
    return begin_all_gather(part, rows, traffic, label).finish();
  }
  // The sum over ranks of (rows, ...): of it own_rows, or all rows.
  at::Tensor reduce_scatter(const at::Tensor& x, TrafficClass traffic, std::string_view label) {
    return begin_reduce_scatter(x, traffic, label).finish();
  }
  at::Tensor all_reduce(const at::Tensor& x, TrafficClass traffic, std::string_view label) {
    return begin_all_reduce(x, traffic, label).finish();
  }
  // Every rank's tensor, all of one shape, in rank order; of ranks [first, end) only, which call it
  // among themselves.
  std::vector<at::Tensor> exchange(const at::Tensor& mine, int first, int end, TrafficClass traffic,
                                   std::string_view label);

  // All but the last, to be finished later: what is computed meanwhile hides them.
  PendingTensor begin_all_gather(const at::Tensor& part, std::int64_t rows, TrafficClass traffic,
                                 std::string_view label);
  PendingTensor begin_reduce_scatter(const at::Tensor& x, TrafficClass traffic,
                                     std::string_view label);
  PendingTensor begin_all_reduce(const at::Tensor& x, TrafficClass traffic, std::string_view label);

 private:
  friend class PendingTensor;

  Communicator* ranks_ = nullptr;
  Traffic* traffic_ = nullptr;
};

// The sum of equal shapes in the order given, in fp32, as the type of the first.
at::Tensor sum_in_order(std::span<const at::Tensor> pieces);

}  // namespace sluice
