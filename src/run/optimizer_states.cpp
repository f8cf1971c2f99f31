#include "sluice/run/optimizer_states.h"

#include <algorithm>

namespace sluice {

bool by_muon(const OptimizerConfig& optimizer, const ParameterShape& parameter) {
  return optimizer.name == OptimizerKind::muon && parameter.shape.size() == 2 &&
         parameter.name.starts_with("layers.");
}

std::vector<StateKind> states_of(const Config& config, const ParameterShape& parameter) {
  const OptimizerConfig& optimizer = config.optimizer;
  std::vector<StateKind> states;
  if (optimizer.master_weights && config.training.dtype != NumberType::float32)
    states.push_back({"/master", NumberType::float32});
  if (by_muon(optimizer, parameter)) {
    states.push_back({"/momentum", optimizer.state_dtype});
  } else if (optimizer.name != OptimizerKind::sgd) {
    states.push_back({"/first_moment", optimizer.state_dtype});
    states.push_back({"/second_moment", optimizer.state_dtype});
  }
  return states;
}

std::int64_t state_bytes(const Config& config, const ParameterShape& parameter) {
  std::int64_t bytes = 0;
  for (const StateKind& state : states_of(config, parameter))
    bytes += bytes_of(state.type);
  return bytes;
}

std::int64_t muon_batch(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kElements = 1 << 25;
  return std::max<std::int64_t>(kElements / (rows * columns), 1);
}

MatrixOwners::MatrixOwners(const OptimizerConfig& optimizer, int stage,
                           std::span<const ParameterShape> parameters, int shards) {
  if (shards == 1) return;
  std::vector<const ParameterShape*> matrices;
  for (const ParameterShape& parameter : parameters)
    if (by_muon(optimizer, parameter)) matrices.push_back(&parameter);
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const auto* a, const auto* b) { return a->count() > b->count(); });
  std::vector<std::int64_t> has(static_cast<std::size_t>(shards), 0);
  for (const ParameterShape* matrix : matrices) {
    const auto least = std::min_element(has.begin(), has.end());
    *least += matrix->count();
    // Each stage begins with another rank: the first one gets most.
    owners_[matrix->name] = static_cast<int>((least - has.begin() + stage) % shards);
  }
}

}  // namespace sluice
