// A rank's own program without the other ranks, to know what its compute alone takes.
#pragma once

#include "sluice/comm/communicator.h"
#include "sluice/model/parameter.h"

namespace sluice {

// A rank without others: what it sends vanishes, what it is to receive is there at once.
class Alone : public Communicator {
 public:
  Alone(const Communicator& world, const RunPlan& plan, const TensorKind& kind);

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override;
  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override;
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override;
  void fail(const std::exception_ptr& cause) override;
  void throw_if_failed() override {}

 private:
  at::Tensor source_;  // what every message holds the beginning of
};

}  // namespace sluice
