#include "sluice/base/error.h"
#include "sluice/plan/flexsp/milp.h"

namespace sluice::flexsp {

bool has_milp() { return false; }

PlannedBatch plan_by_milp(const Cluster&, std::span<const std::int64_t>, const PlanOptions&,
                          double) {
  throw user_error(
      "`strategy` is milp: this program was built without the solver CBC; install the Debian "
      "package coinor-libcbc-dev and build again, or use flex");
}

}  // namespace sluice::flexsp
