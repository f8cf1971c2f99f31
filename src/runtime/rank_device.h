// What the ranks of this process compute on: the CPU, a GPU that they share, or a part of it each.
// A process of one rank has its GPU for itself.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "sluice/config/config.h"
#include "sluice/cuda/device.h"

namespace sluice {

// Readies this process to compute on a GPU. Throws UserError "ASKED is cuda: no GPU ...; use
// INSTEAD" where there is none.
void require_gpu(const std::string& asked, const std::string& instead);

class RankDevices {
 public:
  // `gpu`: which of those that this process sees. Throws UserError where there is no such device.
  // To be made before the ranks start, and to outlive them.
  explicit RankDevices(const ClusterConfig& config, int gpu = 0);

  // To be held by a rank's thread as long as it computes; null on the CPU.
  std::unique_ptr<cuda::RankStream> take(int rank) const;
  at::Device device() const {
    return on_gpu_ ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu_)) : at::kCPU;
  }
  // "cuda, 8 partitions of 8 SMs"
  std::string text() const;

 private:
  bool on_gpu_;
  int gpu_;
  std::unique_ptr<cuda::Partitions> partitions_;
};

}  // namespace sluice
