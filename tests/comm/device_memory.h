// The cases speak of host memory. Here it is taken to a GPU and back, so that the same cases hold
// for a Communicator that moves the memory of GPUs.
#pragma once

#include <cstddef>
#include <memory>

#include "sluice/comm/communicator.h"

namespace sluice::test {

// A GPU of a test.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
  // In the order of the current stream. The bytes of `from` stay until the stream is done.
  virtual void to_device(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // The same, and blocks.
  virtual void to_host(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

// Every message with bytes leaves from `memory` and arrives there. Both outlive it.
std::unique_ptr<Communicator> through_device(Communicator& inner, DeviceMemory& memory);

}  // namespace sluice::test
