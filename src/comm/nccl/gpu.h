// What the communicator in world.h needs from a GPU and from NCCL. nccl.cpp provides both; a test
// replaces them with host memory.
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
  // All work queued on the caller's current stream from now on waits for this moment.
  virtual void precede() const = 0;
  virtual bool passed() const = 0;
};

// The name by which the ends of a link find each other, made by one of them.
using LinkId = std::array<char, 128>;

// One end of a link from one rank to another: the sender has place 0 of 2, the receiver place 1. A
// link from a rank to itself has a single end, 0 of 1.
struct LinkEnd {
  LinkId id{};
  int place = 0;
  int size = 1;
};

// Memory to be sent or received, not before the moment `ready`.
struct GpuPart {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  const GpuMoment* ready = nullptr;
};

// A link with a stream of its own. It is made, used and destroyed by one thread, which is not the
// rank's, since every call may block until the other end makes its own. Calls throw
// std::runtime_error. Destroying it ends what is under way: afterwards no memory is touched.
class GpuLink {
 public:
  virtual ~GpuLink() = default;
  // Moves one part, or both on a link from a rank to itself. Returns once the work is queued on the
  // stream, with the moment at which it is done; null if asked to stop.
  virtual std::shared_ptr<const GpuMoment> move(const std::optional<GpuPart>& out,
                                                const std::optional<GpuPart>& in,
                                                const std::stop_token& stop) = 0;
  // What has gone wrong in the meantime; empty: nothing.
  virtual std::string trouble() = 0;
};

// The GPU of a rank. Called by many threads.
class Gpu {
 public:
  virtual ~Gpu() = default;
  // Whether the memory is the GPU's own.
  virtual bool holds(const std::byte* memory) const = 0;
  // The moment at which all work queued on the caller's current stream so far is done.
  virtual std::unique_ptr<const GpuMoment> now() const = 0;
  virtual LinkId new_id() const = 0;
  // Connects to the other end. Null if asked to stop.
  virtual std::unique_ptr<GpuLink> connect(const LinkEnd& end,
                                           const std::stop_token& stop) const = 0;
};

}  // namespace sluice
