#include "sluice/comm/tensors/group.h"

#include <chrono>

#include "sluice/base/error.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::span<std::byte> tensor_bytes(const at::Tensor& tensor) {
  SLUICE_CHECK(tensor.is_contiguous(), "a tensor of {} elements is not contiguous", tensor.numel());
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor sum_in_order(std::span<const at::Tensor> pieces) {
  if (pieces.size() == 1) return pieces[0];
  at::Tensor sum = pieces[0].to(at::kFloat) + pieces[1].to(at::kFloat);
  for (const at::Tensor& piece : pieces.subspan(2))
    sum.add_(piece);
  return sum.to(pieces[0].scalar_type());
}

at::Tensor PendingTensor::finish() {
  if (kind_ == Kind::ready) return std::move(input_);
  const auto start = Clock::now();
  group_->ranks_->wait_all(requests_);
  requests_.clear();
  if (kind_ == Kind::all_to_all) group_->all_to_all_seconds_ += seconds_since(start);
  if (kind_ == Kind::whole || kind_ == Kind::all_to_all) return std::move(whole_);
  at::Tensor sum = sum_in_order(pieces_);
  if (kind_ == Kind::reduce_scatter) return sum;
  return group_->all_gather(sum, input_.size(0), traffic_, label_);
}

Request TensorGroup::send(int to, const at::Tensor& tensor, std::string_view label) {
  return ranks_->post_send(lane_, first_ + to, tensor_bytes(tensor), label);
}

Request TensorGroup::recv(int from, const at::Tensor& tensor, std::string_view label) {
  return ranks_->post_recv(lane_, first_ + from, tensor_bytes(tensor), label);
}

PendingTensor TensorGroup::begin_all_gather(const at::Tensor& part, std::int64_t rows,
                                            TrafficClass traffic, std::string_view label) {
  PendingTensor pending;
  pending.input_ = part;
  if (size() == 1) return pending;
  const RowRange own = own_rows(rows);
  SLUICE_CHECK(part.size(0) == own.count(), "{} rows of {}, of {} in all", part.size(0),
               own.count(), rows);
  pending.kind_ = PendingTensor::Kind::whole;
  pending.group_ = this;
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes[0] = rows;
  pending.whole_ = at::empty(sizes, part.options());
  at::Tensor place = pending.whole_.slice(0, own.begin, own.end);
  place.copy_(part);
  pending.input_ = place;
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() + size() - step) % size(), to = (rank() + step) % size();
    const RowRange theirs = part_of(rows, from, size());
    pending.requests_.push_back(
        recv(from, pending.whole_.slice(0, theirs.begin, theirs.end), label));
    pending.requests_.push_back(send(to, place, label));
  }
  traffic_->add(traffic, place.numel() * (size() - 1));
  return pending;
}

PendingTensor TensorGroup::begin_reduce_scatter(const at::Tensor& x, TrafficClass traffic,
                                                std::string_view label) {
  PendingTensor pending;
  pending.input_ = x.contiguous();
  if (size() == 1) return pending;
  pending.kind_ = PendingTensor::Kind::reduce_scatter;
  pending.group_ = this;
  pending.traffic_ = traffic;
  pending.label_ = label;
  pending.pieces_.resize(static_cast<std::size_t>(size()));
  const std::int64_t rows = x.size(0);
  const RowRange own = own_rows(rows);
  at::Tensor mine = pending.input_.slice(0, own.begin, own.end);
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() + size() - step) % size(), to = (rank() + step) % size();
    at::Tensor& piece = pending.pieces_[static_cast<std::size_t>(from)];
    piece = at::empty_like(mine);
    pending.requests_.push_back(recv(from, piece, label));
    const RowRange theirs = part_of(rows, to, size());
    const at::Tensor sent = pending.input_.slice(0, theirs.begin, theirs.end);
    pending.requests_.push_back(send(to, sent, label));
    traffic_->add(traffic, sent.numel());
  }
  pending.pieces_[static_cast<std::size_t>(rank())] = std::move(mine);
  return pending;
}

PendingTensor TensorGroup::begin_all_reduce(const at::Tensor& x, TrafficClass traffic,
                                            std::string_view label) {
  PendingTensor pending = begin_reduce_scatter(x, traffic, label);
  if (size() > 1) pending.kind_ = PendingTensor::Kind::all_reduce;
  return pending;
}

PendingTensor TensorGroup::begin_all_to_all(std::vector<at::Tensor> parts, TrafficClass traffic,
                                            std::string_view label) {
  SLUICE_CHECK(std::ssize(parts) == size(), "{} parts for {} ranks", parts.size(), size());
  PendingTensor pending;
  if (size() == 1) {
    pending.input_ = std::move(parts[0]);
    return pending;
  }
  const auto start = Clock::now();
  pending.kind_ = PendingTensor::Kind::all_to_all;
  pending.group_ = this;
  const auto mine = static_cast<std::size_t>(rank());
  const std::int64_t rows = parts[0].size(0);
  std::vector<std::int64_t> sizes = parts[0].sizes().vec();
  sizes[0] = rows * size();
  pending.whole_ = at::empty(sizes, parts[0].options());
  const auto from_rank = [&](int from) {
    return pending.whole_.slice(0, rows * from, rows * (from + 1));
  };
  from_rank(rank()).copy_(parts[mine]);
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() + size() - step) % size(), to = (rank() + step) % size();
    at::Tensor& part = parts[static_cast<std::size_t>(to)];
    SLUICE_CHECK(part.sizes() == parts[mine].sizes(), "the parts for ranks {} and {} differ", to,
                 rank());
    part = part.contiguous();
    pending.requests_.push_back(recv(from, from_rank(from), label));
    pending.requests_.push_back(send(to, part, label));
    traffic_->add(traffic, part.numel());
  }
  pending.sent_ = std::move(parts);
  all_to_all_seconds_ += seconds_since(start);
  return pending;
}

std::vector<at::Tensor> TensorGroup::exchange(const at::Tensor& mine, int first, int end,
                                              TrafficClass traffic, std::string_view label) {
  std::vector<at::Tensor> all(static_cast<std::size_t>(end - first));
  std::vector<Request> requests;
  const at::Tensor sent = mine.contiguous();
  for (int peer = first; peer < end; ++peer) {
    at::Tensor& piece = all[static_cast<std::size_t>(peer - first)];
    if (peer == rank()) {
      piece = sent;
      continue;
    }
    piece = at::empty_like(sent);
    requests.push_back(recv(peer, piece, label));
    requests.push_back(send(peer, sent, label));
    traffic_->add(traffic, sent.numel());
  }
  if (ranks_) ranks_->wait_all(requests);
  return all;
}

}  // namespace sluice
