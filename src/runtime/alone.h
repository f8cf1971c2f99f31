// A rank's own program without the other ranks, to know what its compute alone takes.
#pragma once

#include "sluice/model/parameter.h"
#include "sluice/run/plan.h"
#include "sluice/runtime/tensor_channel.h"

namespace sluice {

// A rank without others: what it sends vanishes, what it is to receive is there at once.
class Alone : public TensorChannel {
 public:
  Alone(int rank, const RunPlan& plan, const TensorKind& kind);

  TensorMessage send(int to, const at::Tensor& tensor, std::string_view label) override;
  TensorMessage recv(int from, std::vector<std::int64_t> sizes, const at::TensorOptions& options,
                     std::string_view label) override;

 private:
  at::Tensor source_;  // what every message holds the beginning of
};

}  // namespace sluice
