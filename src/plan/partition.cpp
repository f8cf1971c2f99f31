#include "plan/partition.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace sluice {
namespace {

class Dealer {
 public:
  Dealer(const Placement& placement, const PartWork& work)
      : placement_(placement),
        layer_work_(work.layer),
        layers_(static_cast<std::size_t>(placement.num_stages()), 0),
        stage_work_(layers_.size(), 0),
        device_work_(static_cast<std::size_t>(placement.num_devices()), 0) {
    add(0, work.embedding);
    add(layers_.size() - 1, work.head);
  }

  void add_layer(std::size_t stage) {
    ++layers_[stage];
    add(stage, layer_work_);
  }

  // Layers are equal, so the least loaded device is always the right one for the next.
  std::size_t best_stage() const {
    std::size_t best = 0;
    for (std::size_t stage = 1; stage < layers_.size(); ++stage)
      if (rank(stage) < rank(best)) best = stage;
    return best;
  }

  std::vector<std::int64_t> take() { return std::move(layers_); }

 private:
  std::size_t device_of(int pipe, std::size_t stage) const {
    return static_cast<std::size_t>(placement_.device_of(pipe, static_cast<int>(stage)));
  }

  // Each pipe takes its share of the microbatches.
  void add(std::size_t stage, double work) {
    stage_work_[stage] += work;
    for (int pipe = 0; pipe < placement_.num_pipes(); ++pipe)
      device_work_[device_of(pipe, stage)] += work / placement_.num_pipes();
  }

  // The busiest of its devices, then the stage itself.
  std::tuple<double, double> rank(std::size_t stage) const {
    double busiest = 0;
    for (int pipe = 0; pipe < placement_.num_pipes(); ++pipe)
      busiest = std::max(busiest, device_work_[device_of(pipe, stage)]);
    return {busiest, stage_work_[stage]};
  }

  const Placement& placement_;
  const double layer_work_;
  std::vector<std::int64_t> layers_;
  std::vector<double> stage_work_, device_work_;
};

}  // namespace

std::vector<std::int64_t> layers_by_work(const Placement& placement, std::int64_t layers,
                                         const PartWork& work) {
  const std::int64_t stages = placement.num_stages();
  const std::int64_t inner = std::max<std::int64_t>(stages - 2, 0);
  if (layers < inner)
    throw user_error(
        "model.layers is {}: too few for {} stages, even with embedding and head as stages of "
        "their own; use fewer stages",
        layers, stages);
  Dealer dealer(placement, work);
  for (std::int64_t stage = 1; stage <= inner; ++stage)
    dealer.add_layer(static_cast<std::size_t>(stage));
  for (std::int64_t dealt = inner; dealt < layers; ++dealt)
    dealer.add_layer(dealer.best_stage());
  return dealer.take();
}

}  // namespace sluice
