#include "sluice/runtime/tensor_channel.h"

#include <unistd.h>

#include <map>
#include <mutex>

#include "sluice/base/error.h"
#include "sluice/comm/tensors/group.h"
#include "sluice/cuda/device.h"

namespace sluice {
namespace {

std::int64_t bytes_of(const std::vector<std::int64_t>& sizes, const at::TensorOptions& options) {
  return c10::multiply_integers(sizes) * static_cast<std::int64_t>(options.dtype().itemsize());
}

class ByteChannel : public TensorChannel {
 public:
  explicit ByteChannel(Communicator& ranks)
      : TensorChannel(ranks.rank(), ranks.size()), ranks_(ranks) {}

  TensorMessage send(int to, const at::Tensor& tensor, std::string_view label) override {
    const at::Tensor kept = tensor.contiguous();
    return {ranks_, ranks_.send(to, tensor_bytes(kept), label),
            static_cast<std::int64_t>(kept.nbytes()), [kept] { return kept; }};
  }

  TensorMessage recv(int from, std::vector<std::int64_t> sizes, const at::TensorOptions& options,
                     std::string_view label) override {
    const at::Tensor room = at::empty(sizes, options);
    return {ranks_, ranks_.recv(from, tensor_bytes(room), label), bytes_of(sizes, options),
            [room] { return room; }};
  }

 private:
  Communicator& ranks_;
};

// Where the ranks of one process leave tensors for each other.
class Exchange {
 public:
  struct Slot {
    int from, to;
    std::int64_t number;  // counts the tensors between these two
    auto operator<=>(const Slot&) const = default;
  };

  void leave(const Slot& slot, const at::Tensor& tensor) {
    Parcel parcel{tensor, {}};
    parcel.made.record();
    const std::lock_guard lock(mutex_);
    parcels_.emplace(slot, std::move(parcel));
  }

  at::Tensor collect(const Slot& slot) {
    const Parcel parcel = take(slot);
    parcel.made.precede();
    // The sender may let go of it while this stream still reads.
    cuda::use_on_this_stream(parcel.tensor);
    return parcel.tensor;
  }

  // The same one for all of `ranks`, each of which calls it.
  static std::shared_ptr<Exchange> of(Communicator& ranks);

 private:
  struct Parcel {
    at::Tensor tensor;
    cuda::Moment made;  // when the sender's stream has it
  };

  Parcel take(const Slot& slot) {
    const std::lock_guard lock(mutex_);
    auto found = parcels_.extract(slot);
    SLUICE_CHECK(!found.empty(), "tensor {} from rank {} is not there for rank {}", slot.number,
                 slot.from, slot.to);
    return std::move(found.mapped());
  }

  std::mutex mutex_;
  std::map<Slot, Parcel> parcels_;
};

std::shared_ptr<Exchange> Exchange::of(Communicator& ranks) {
  static std::mutex mutex;
  static std::map<std::int64_t, std::weak_ptr<Exchange>> made;  // while the ranks meet
  static std::int64_t num_made = 0;

  struct Name {
    std::int64_t process = 0, number = 0;
  } name;
  std::shared_ptr<Exchange> exchange;
  if (ranks.rank() == 0) {
    exchange = std::make_shared<Exchange>();
    const std::lock_guard lock(mutex);
    name = {getpid(), ++num_made};
    made[name.number] = exchange;
  }
  ranks.broadcast(0, std::as_writable_bytes(std::span(&name, 1)), "tensor exchange");
  SLUICE_CHECK(name.process == getpid(), "ranks of processes {} and {} share a GPU", name.process,
               getpid());
  if (ranks.rank() != 0) {
    const std::lock_guard lock(mutex);
    exchange = made[name.number].lock();
    SLUICE_CHECK(exchange, "rank 0 left before tensors were exchanged");
  }
  ranks.barrier("tensor exchange");
  if (ranks.rank() == 0) {
    const std::lock_guard lock(mutex);
    made.erase(name.number);
  }
  return exchange;
}

// Messages are empty: they say when a tensor lies in the exchange, and carry failures.
class SharedGpuChannel : public TensorChannel {
 public:
  explicit SharedGpuChannel(Communicator& ranks)
      : TensorChannel(ranks.rank(), ranks.size()), ranks_(ranks), exchange_(Exchange::of(ranks)) {}

  TensorMessage send(int to, const at::Tensor& tensor, std::string_view label) override {
    const at::Tensor kept = tensor.contiguous();
    exchange_->leave({rank(), to, num_sent_[to]++}, kept);
    return {ranks_, ranks_.send(to, {}, label), static_cast<std::int64_t>(kept.nbytes()),
            [kept] { return kept; }};
  }

  TensorMessage recv(int from, std::vector<std::int64_t> sizes, const at::TensorOptions& options,
                     std::string_view label) override {
    const std::int64_t bytes = bytes_of(sizes, options);
    return {ranks_, ranks_.recv(from, {}, label), bytes,
            [exchange = exchange_, slot = Exchange::Slot{from, rank(), num_received_[from]++},
             sizes = std::move(sizes)] { return exchange->collect(slot).view(sizes); }};
  }

 private:
  Communicator& ranks_;
  std::shared_ptr<Exchange> exchange_;
  std::map<int, std::int64_t> num_sent_, num_received_;  // by rank
};

}  // namespace

std::unique_ptr<TensorChannel> make_tensor_channel(Communicator& ranks, at::Device device) {
  if (device.is_cuda() && !ranks.moves_device_memory())
    return std::make_unique<SharedGpuChannel>(ranks);
  return std::make_unique<ByteChannel>(ranks);
}

}  // namespace sluice
