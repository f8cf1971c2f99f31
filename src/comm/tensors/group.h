// Collectives over tensors. The rank that owns a row adds up its parts in ascending rank order, in
// fp32. So every rank ends with the same bits, which depend on neither timing nor backend.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/cost/traffic.h"

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
  // One that is finished already.
  explicit PendingTensor(at::Tensor tensor) : input_(std::move(tensor)) {}
  // Blocks until the other ranks have sent their parts.
  at::Tensor finish();

 private:
  friend class TensorGroup;
  enum class Kind { ready, whole, all_to_all, reduce_scatter, all_reduce };
  Kind kind_ = Kind::ready;
  TensorGroup* group_ = nullptr;
  at::Tensor input_;                // being sent
  at::Tensor whole_;                // being put together
  std::vector<at::Tensor> sent_;    // by rank, where each gets another
  std::vector<at::Tensor> pieces_;  // by rank, of this rank's rows
  std::vector<Request> requests_;
  TrafficClass traffic_ = TrafficClass::tensor_layer;
  std::string label_;
};

// The ranks of a communicator, which exchange tensors. A default-constructed group has one rank:
// nothing moves, and every collective returns its argument.
class TensorGroup {
 public:
  TensorGroup() = default;
  // Both outlive the group.
  TensorGroup(Communicator& ranks, Traffic& traffic)
      : ranks_(&ranks), traffic_(&traffic), size_(ranks.size()) {}
  // A view of `size` neighbours among `ranks`, of which this rank is one. Its messages pass on
  // their own lane: they do not mix with collectives of all ranks that are under way.
  TensorGroup(Communicator& ranks, Traffic& traffic, int first, int size)
      : ranks_(&ranks), traffic_(&traffic), first_(first), size_(size), lane_(Lane::messages) {}

  int size() const { return size_; }
  // Seconds that this rank has spent in all-to-alls so far, waiting for the others included. On a
  // GPU: those of its thread.
  double all_to_all_seconds() const { return all_to_all_seconds_; }
  int rank() const { return ranks_ ? ranks_->rank() - first_ : 0; }
  // This rank's share of `rows` rows.
  RowRange own_rows(std::int64_t rows) const { return part_of(rows, rank(), size()); }

  // Every rank's own_rows (n, ...) -> all rows, `rows` of them. Inputs are not written to.
  at::Tensor all_gather(const at::Tensor& part, std::int64_t rows, TrafficClass traffic,
                        std::string_view label) {
    return begin_all_gather(part, rows, traffic, label).finish();
  }
  // The sum of x (rows, ...) over the ranks: own_rows of it, or all rows.
  at::Tensor reduce_scatter(const at::Tensor& x, TrafficClass traffic, std::string_view label) {
    return begin_reduce_scatter(x, traffic, label).finish();
  }
  at::Tensor all_reduce(const at::Tensor& x, TrafficClass traffic, std::string_view label) {
    return begin_all_reduce(x, traffic, label).finish();
  }
  // Part p of `parts`, all of one shape, to rank p -> what the ranks sent to this one, one after
  // the other along the first dimension.
  at::Tensor all_to_all(std::vector<at::Tensor> parts, TrafficClass traffic,
                        std::string_view label) {
    return begin_all_to_all(std::move(parts), traffic, label).finish();
  }
  // The tensors of ranks [first, end), all of one shape, in rank order. Only these ranks call it.
  std::vector<at::Tensor> exchange(const at::Tensor& mine, int first, int end, TrafficClass traffic,
                                   std::string_view label);

  // The collectives above except exchange, to be finished later. Computation in between hides them.
  PendingTensor begin_all_gather(const at::Tensor& part, std::int64_t rows, TrafficClass traffic,
                                 std::string_view label);
  PendingTensor begin_reduce_scatter(const at::Tensor& x, TrafficClass traffic,
                                     std::string_view label);
  PendingTensor begin_all_reduce(const at::Tensor& x, TrafficClass traffic, std::string_view label);
  PendingTensor begin_all_to_all(std::vector<at::Tensor> parts, TrafficClass traffic,
                                 std::string_view label);

 private:
  friend class PendingTensor;

  Request send(int to, const at::Tensor& tensor, std::string_view label);
  Request recv(int from, const at::Tensor& tensor, std::string_view label);

  Communicator* ranks_ = nullptr;
  Traffic* traffic_ = nullptr;
  int first_ = 0, size_ = 1;  // ranks of the communicator
  Lane lane_ = Lane::collectives;
  double all_to_all_seconds_ = 0;
};

// The sum of tensors of one shape, in the order given, in fp32. It has the type of the first.
at::Tensor sum_in_order(std::span<const at::Tensor> pieces);

}  // namespace sluice
