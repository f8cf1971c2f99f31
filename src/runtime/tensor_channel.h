// How tensors go from one rank of the pipeline to another: as bytes, from CPU to CPU or, where each
// rank has a GPU (NCCL), from GPU to GPU. On a GPU that the ranks of one process share the tensor
// itself is handed over: the receiver's stream waits for the sender's. On GPUs neither host thread
// waits for the data.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/comm/communicator.h"

namespace sluice {

// One tensor under way.
class TensorMessage {
 public:
  // Of `bytes`, carried by `request`, which belongs to `ranks`. `result` gives a received tensor.
  TensorMessage(Communicator& ranks, Request request, std::int64_t bytes,
                std::function<at::Tensor()> result)
      : ranks_(&ranks), request_(std::move(request)), bytes_(bytes), result_(std::move(result)) {}
  // One that has moved already.
  TensorMessage(std::int64_t bytes, std::function<at::Tensor()> result)
      : bytes_(bytes), result_(std::move(result)) {}

  // Blocks until the other side has done its part; on a GPU that is long before the data is there.
  void wait() {
    if (ranks_) ranks_->wait(request_);
  }
  bool test() { return !ranks_ || ranks_->test(request_); }
  // What was received. REQUIRES: waited for; called once.
  at::Tensor take() { return std::exchange(result_, nullptr)(); }

  std::int64_t bytes() const { return bytes_; }

 private:
  Communicator* ranks_ = nullptr;
  Request request_;
  std::int64_t bytes_ = 0;
  std::function<at::Tensor()> result_;  // of a sent one it keeps the tensor
};

// One rank's end of the way to the others.
class TensorChannel {
 public:
  virtual ~TensorChannel() = default;
  TensorChannel(const TensorChannel&) = delete;
  TensorChannel& operator=(const TensorChannel&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Neither blocks. Between two ranks, tensors arrive in the order they were sent. A sent tensor
  // stays unchanged until its message was waited for; one on a GPU that ranks share, for ever.
  virtual TensorMessage send(int to, const at::Tensor& tensor, std::string_view label) = 0;
  virtual TensorMessage recv(int from, std::vector<std::int64_t> sizes,
                             const at::TensorOptions& options, std::string_view label) = 0;

 protected:
  TensorChannel(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

// The channel between `ranks`, for tensors of `device`. Every rank calls it; `ranks` outlives it.
// REQUIRES: ranks that share a GPU are of one process.
std::unique_ptr<TensorChannel> make_tensor_channel(Communicator& ranks, at::Device device);

}  // namespace sluice
