#include "sluice/runtime/older_weights.h"

#include <fmt/format.h>

namespace sluice {

std::string older_name(const std::string& parameter, int updates_ago) {
  return fmt::format("{}/before-{}", parameter, updates_ago);
}

void OlderWeights::before_update(bool keeps) {
  if (!keeps) return kept_.clear();
  std::vector<at::Tensor>& newest = kept_.emplace_front();
  for (const Parameter* parameter : parameters_)
    newest.push_back(parameter->value.clone(at::MemoryFormat::Contiguous));
  while (static_cast<int>(kept_.size()) > most_)
    kept_.pop_back();
}

std::vector<OlderWeights::Entry> OlderWeights::entries() const {
  std::vector<Entry> out;
  for (std::size_t ago = 0; ago < kept_.size(); ++ago)
    for (std::size_t n = 0; n < parameters_.size(); ++n)
      out.push_back({parameters_[n], older_name(parameters_[n]->name, static_cast<int>(ago) + 1),
                     kept_[ago][n]});
  return out;
}

}  // namespace sluice
