// STAND-IN until the real file is merged.
#pragma once

#include <optional>
#include <string_view>

#include "sluice/plan/flexsp/plan_batch.h"

namespace sluice::flexsp {

std::optional<PlannedBatch> fixed_degree(const Cluster& cluster,
                                         std::span<const std::int64_t> lengths, int degree,
                                         double fill);

struct Adapted {
  int degree = 1;
  PlannedBatch batch;
};
std::optional<Adapted> batch_ada(const Cluster& cluster, std::span<const std::int64_t> lengths,
                                 double fill);

struct TensorContextCosts {};
struct TensorContext {
  int tensor = 1, context = 1;
  double seconds = 0;
};
std::optional<TensorContext> tensor_context(const Cluster& cluster,
                                            std::span<const std::int64_t> lengths,
                                            const TensorContextCosts& costs);

}  // namespace sluice::flexsp
