#include "comm/device_memory.h"

namespace sluice::test {
namespace {

// Works through `inner` only, which empties its request when that is finished.
class DeviceTransfer : public Transfer {
 public:
  DeviceTransfer(Communicator& inner, DeviceMemory& memory, std::shared_ptr<std::byte> device,
                 std::span<std::byte> target, Request request)
      : inner_(inner),
        memory_(memory),
        device_(std::move(device)),
        target_(target),
        request_(std::move(request)) {}

  void wait() override {
    inner_.wait(request_);
    arrive();
  }
  bool test() override {
    if (!inner_.test(request_)) return false;
    arrive();
    return true;
  }

 private:
  void arrive() {
    if (!target_.empty()) memory_.to_host(target_.data(), device_.get(), target_.size());
  }

  Communicator& inner_;
  DeviceMemory& memory_;
  std::shared_ptr<std::byte> device_;  // outlives the request
  std::span<std::byte> target_;        // empty: of a send
  Request request_;
};

class ThroughDevice : public Communicator {
 public:
  ThroughDevice(Communicator& inner, std::unique_ptr<Communicator> owned, DeviceMemory& memory)
      : Communicator(inner.rank(), inner.world_ranks()),
        inner_(inner),
        owned_(std::move(owned)),
        memory_(memory) {}

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    if (bytes.empty()) return inner_.post_send(lane, to, bytes, label);
    std::shared_ptr<std::byte> device = memory_.allocate(bytes.size());
    memory_.to_device(device.get(), bytes.data(), bytes.size());
    Request request = inner_.post_send(lane, to, {device.get(), bytes.size()}, label);
    return made(std::move(device), {}, std::move(request));
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    if (bytes.empty()) return inner_.post_recv(lane, from, bytes, label);
    std::shared_ptr<std::byte> device = memory_.allocate(bytes.size());
    Request request = inner_.post_recv(lane, from, {device.get(), bytes.size()}, label);
    return made(std::move(device), bytes, std::move(request));
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    std::unique_ptr<Communicator> group = inner_.group(ranks);
    if (!group) return nullptr;
    Communicator& inner = *group;
    return std::make_unique<ThroughDevice>(inner, std::move(group), memory_);
  }

  void fail(const std::exception_ptr& cause) override { inner_.fail(cause); }
  void throw_if_failed() override { inner_.throw_if_failed(); }

 private:
  Request made(std::shared_ptr<std::byte> device, std::span<std::byte> target, Request request) {
    return Request(std::make_unique<DeviceTransfer>(inner_, memory_, std::move(device), target,
                                                    std::move(request)));
  }

  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;  // inner_, where this is a group
  DeviceMemory& memory_;
};

}  // namespace

std::unique_ptr<Communicator> through_device(Communicator& inner, DeviceMemory& memory) {
  return std::make_unique<ThroughDevice>(inner, nullptr, memory);
}

}  // namespace sluice::test
