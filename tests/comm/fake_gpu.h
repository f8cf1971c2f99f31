// A GPU and an NCCL of a test's own, in host memory, and as unhelpful as they may be: streams are
// threads that fall behind, every call of a link blocks until the other end makes its own, and a
// message is not kept anywhere on the way.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "comm/device_memory.h"
#include "sluice/comm/nccl/gpu.h"

namespace sluice::test {

class FakeStream;
class FakeWires;

class FakeGpu : public Gpu, public DeviceMemory {
 public:
  // `wires` are those of all ranks.
  explicit FakeGpu(std::shared_ptr<FakeWires> wires);
  ~FakeGpu() override;

  bool holds(const std::byte* memory) const override;
  std::unique_ptr<const GpuMoment> now() const override;
  LinkId new_id() const override;
  std::unique_ptr<GpuLink> connect(const LinkEnd& end, const std::stop_token& stop) const override;

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  void to_device(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void to_host(std::byte* to, const std::byte* from, std::size_t bytes) override;

  // The rank's own stream does this next.
  void run(std::function<void()> work);
  void synchronize();

 private:
  struct Memory;
  std::shared_ptr<FakeWires> wires_;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<FakeStream> stream_;
};

// How the links of all ranks meet. The first `broken_after` moves of each end go well; `ends_seen`:
// that an end has gone is trouble for the other one.
std::shared_ptr<FakeWires> fake_wires(int broken_after = 1 << 30, bool ends_seen = false);

}  // namespace sluice::test
