#include "sluice/runtime/rank_device.h"

#include <cstdlib>

#include "sluice/base/error.h"

namespace sluice {

void require_gpu(const std::string& asked, const std::string& instead) {
  // Ops come and go with tensors of many sizes: pages that can be mapped anew leave no holes
  // between them. A setting of the user's stays.
  setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", 0);
  if (const std::string cause = cuda::why_not(); !cause.empty())
    throw user_error("{} is cuda: {}; use {}", asked, cause, instead);
}

RankDevices::RankDevices(const ClusterConfig& config, int gpu)
    : on_gpu_(config.device == DeviceKind::cuda), gpu_(gpu) {
  if (!on_gpu_) return;
  require_gpu("cluster.device", "`cluster.device`=cpu");
  if (config.partitions > 0)
    partitions_ =
        std::make_unique<cuda::Partitions>(gpu, config.partitions, config.sms_per_partition);
}

std::unique_ptr<cuda::RankStream> RankDevices::take(int rank) const {
  if (!on_gpu_) return nullptr;
  return partitions_ ? std::make_unique<cuda::RankStream>(*partitions_, rank)
                     : std::make_unique<cuda::RankStream>(gpu_);
}

std::string RankDevices::text() const {
  if (!on_gpu_) return "cpu";
  if (!partitions_) return "cuda";
  return fmt::format("cuda, {} partitions of {} SMs", partitions_->count(), partitions_->sms());
}

}  // namespace sluice
