#include "sluice/runtime/older_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "sluice/runtime/files/checkpoint.h"

namespace sluice {

int num_older(const RunPlan& plan) {
  const bool previous = plan.schedule.weights == WeightVersions::previous;
  return std::max(plan.endless->ahead(), previous ? 1 : 0);
}

std::string older_name(const std::string& parameter, int updates_ago) {
  return fmt::format("{}{}{}", parameter, kOlderMark, updates_ago);
}

std::string predicted_name(const std::string& parameter) {
  return fmt::format("{}{}", parameter, kPredictedMark);
}

std::vector<at::Tensor> OlderWeights::copies() const {
  std::vector<at::Tensor> out;
  for (const Parameter* parameter : parameters_)
    out.push_back(parameter->value.clone(at::MemoryFormat::Contiguous));
  return out;
}

void OlderWeights::keep_prediction() { predicted_ = copies(); }

void OlderWeights::before_update(bool keeps) {
  predicted_.clear();
  if (!keeps) return kept_.clear();
  kept_.push_front(copies());
  while (static_cast<int>(kept_.size()) > most_)
    kept_.pop_back();
}

std::vector<OlderWeights::Entry> OlderWeights::entries() const {
  std::vector<Entry> out;
  for (std::size_t ago = 0; ago < kept_.size(); ++ago)
    for (std::size_t n = 0; n < parameters_.size(); ++n)
      out.push_back({parameters_[n], older_name(parameters_[n]->name, static_cast<int>(ago) + 1),
                     kept_[ago][n]});
  for (std::size_t n = 0; n < predicted_.size(); ++n)
    out.push_back({parameters_[n], predicted_name(parameters_[n]->name), predicted_[n]});
  return out;
}

}  // namespace sluice
