// What the communicator in world.h needs of a GPU and of NCCL: nccl.cpp has both, and a test puts
// host memory in their place.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace sluice {

// A point in the work of a stream.
class GpuMoment {
 public:
  virtual ~GpuMoment() = default;
  // Everything given to the caller's current stream from now on comes after the moment.
  virtual void precede() const = 0;
  virtual bool passed() const = 0;
};

// The name by which the ends of a link find each other, made by one of them.
using LinkId = std::array<char, 128>;

// An end of the way from one rank to another: the sender has place 0 of 2, the receiver 1. The way
// from a rank to itself has a single end, 0 of 1.
struct LinkEnd {
  LinkId id{};
  int place = 0;
  int size = 1;
};

// Memory that leaves or arrives, from the moment `ready` on.
struct GpuPart {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  const GpuMoment* ready = nullptr;
};

// A link with a stream of its own. It is made, used and destroyed by one thread, which is not that
// of the rank: every call may block until the other end makes its own. Calls throw
// std::runtime_error. Destroying it ends what is under way: no memory is touched any more.
class GpuLink {
 public:
  virtual ~GpuLink() = default;
  // Moves one part, or on the way to itself both. Returns when the stream has got that to do, with
  // the moment when it is done; null once it is asked to stop.
  virtual std::shared_ptr<const GpuMoment> move(const std::optional<GpuPart>& out,
                                                const std::optional<GpuPart>& in,
                                                const std::stop_token& stop) = 0;
  // What has gone wrong since; empty: nothing.
  virtual std::string trouble() = 0;
};

// The GPU of a rank. Called by many threads.
class Gpu {
 public:
  virtual ~Gpu() = default;
  // Whether the memory is the GPU's own.
  virtual bool holds(const std::byte* memory) const = 0;
  // The end of what the caller's current stream was given so far.
  virtual std::unique_ptr<const GpuMoment> now() const = 0;
  virtual LinkId new_id() const = 0;
  // Meets the other end. Null once it is asked to stop.
  virtual std::unique_ptr<GpuLink> connect(const LinkEnd& end,
                                           const std::stop_token& stop) const = 0;
};

}  // namespace sluice
