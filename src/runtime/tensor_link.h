// How a tensor goes from one rank of the pipeline to another: its bytes, from CPU to CPU or, where
// each rank has a GPU (NCCL), from GPU to GPU. On a GPU that the ranks of one process share the
// tensor itself is handed over: the receiver's stream waits for the sender's. On GPUs neither host
// thread waits for the data.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string_view>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/cuda/device.h"

namespace sluice {

// A tensor on its way between streams; the message is a pointer to it, which the receiver owns.
struct Parcel {
  at::Tensor tensor;
  cuda::Moment made;  // when the sender's stream has it
};

// One tensor under way. Of a received one the tensor is there once taken.
class TensorMessage {
 public:
  // Does not block. `tensor` stays unchanged until the message was waited for, on a GPU for ever.
  static TensorMessage send(Communicator& ranks, int to, const at::Tensor& tensor,
                            std::string_view label);
  static TensorMessage recv(Communicator& ranks, int from, std::vector<std::int64_t> sizes,
                            const at::TensorOptions& options, std::string_view label);

  // Blocks until the other side has done its part; on a GPU that is long before the data is there.
  void wait(Communicator& ranks) { ranks.wait(request_); }
  bool test(Communicator& ranks) { return ranks.test(request_); }
  // What was received. REQUIRES: waited for.
  at::Tensor take();

  std::int64_t bytes() const { return bytes_; }
  std::int64_t elements() const { return elements_; }

 private:
  std::vector<std::int64_t> sizes_;
  std::int64_t bytes_ = 0, elements_ = 0;
  at::Tensor tensor_;
  std::unique_ptr<Parcel*> parcel_;  // at an address that stays while the message moves
  Request request_;
};

}  // namespace sluice
