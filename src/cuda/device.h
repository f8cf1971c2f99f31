// The GPU of a rank: its stream, the clock of its ops, its memory, and SM partitions: parts of one
// GPU that work side by side, one for each rank. A build without CUDA has a version of this in
// which there is no GPU (absent.cpp).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice::cuda {

// Why this program cannot compute on a GPU here; empty where it can.
std::string why_not();
int num_devices();
std::string device_name(int device);  // "NVIDIA H200"

// A point in the work of a stream. Moments of one process can be compared, whatever their streams.
class Moment {
 public:
  Moment();
  ~Moment();
  Moment(Moment&&) noexcept;
  Moment& operator=(Moment&&) noexcept;

  // Marks the end of what the current stream was given so far.
  void record();
  // Everything given to the current stream from now on comes after the moment.
  void precede() const;
  void wait() const;                                // blocks the caller
  double seconds_since(const Moment& start) const;  // REQUIRES both were waited for

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Parts of a GPU with so many SMs each; 0: as many as there are for all. Throws UserError where the
// GPU has not that many.
class Partitions {
 public:
  Partitions(int device, int count, int sms);
  ~Partitions();
  int count() const;
  int sms() const;  // of each: what the hardware made of the wish

 private:
  friend class RankStream;
  struct State;
  std::unique_ptr<State> state_;
};

// While it lives, what the thread that made it computes on the GPU goes to a stream of its own: of
// the whole GPU, or of one of its partitions.
class RankStream {
 public:
  explicit RankStream(int device);
  RankStream(const Partitions& partitions, int part);
  ~RankStream();
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Blocks until the current stream has done all it was given.
void synchronize();
// Keeps the tensor's memory from being used again before the current stream is done with it.
void use_on_this_stream(const at::Tensor& tensor);

// Memory of a GPU, in bytes: what tensors hold, at most so far and now, what the allocator holds
// for them, and what the GPU has in all.
struct MemoryUse {
  std::int64_t peak = 0, allocated = 0, reserved = 0, total = 0;
};
MemoryUse memory_use(int device);
void reset_peak(int device);

}  // namespace sluice::cuda
