#include "sluice/comm/fault.h"

#include <thread>

#include "sluice/base/error.h"

namespace sluice {

namespace {

struct Plan {
  Fault fault;
  int num_calls = 0;
};

class FaultyCommunicator : public Communicator {
 public:
  FaultyCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned,
                     std::shared_ptr<Plan> plan)
      : Communicator(inner.rank(), inner.world_ranks()),
        inner_(inner),
        owned_(std::move(owned)),
        plan_(std::move(plan)) {}

  bool moves_device_memory() const override { return inner_.moves_device_memory(); }

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    return dropped("send", label) ? Request() : inner_.post_send(lane, to, bytes, label);
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    return dropped("recv", label) ? Request() : inner_.post_recv(lane, from, bytes, label);
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    std::unique_ptr<Communicator> made = inner_.group(ranks);
    if (made == nullptr) return nullptr;
    Communicator& group = *made;
    return std::make_unique<FaultyCommunicator>(group, std::move(made), plan_);
  }

  void fail(const std::exception_ptr& cause) override { inner_.fail(cause); }
  void throw_if_failed() override { inner_.throw_if_failed(); }

 private:
  bool dropped(std::string_view call, std::string_view label) {
    if (++plan_->num_calls != plan_->fault.at_call) return false;
    switch (plan_->fault.kind) {
      case Fault::Kind::delay: std::this_thread::sleep_for(plan_->fault.delay); return false;
      case Fault::Kind::drop: return true;
      case Fault::Kind::throw_error: break;
    }
    throw std::runtime_error(
        fmt::format("injected fault at call {} ({} \"{}\")", plan_->num_calls, call, label));
  }

  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;  // inner_, where this is a group
  std::shared_ptr<Plan> plan_;
};

}  // namespace

std::unique_ptr<Communicator> with_fault(Communicator& inner, const Fault& fault) {
  return std::make_unique<FaultyCommunicator>(inner, nullptr, std::make_shared<Plan>(Plan{fault}));
}

}  // namespace sluice
