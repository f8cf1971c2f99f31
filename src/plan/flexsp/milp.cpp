// STAND-IN until the real file is merged.
#include "sluice/plan/flexsp/milp.h"

#include "sluice/base/error.h"

namespace sluice::flexsp {

bool has_milp() { return false; }

PlannedBatch plan_by_milp(const Cluster&, std::span<const std::int64_t>, const PlanOptions&,
                          double) {
  throw user_error("this build has no solver for integer programs");
}

}  // namespace sluice::flexsp
