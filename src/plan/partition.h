// How many layers each stage gets, so that the slowest device is as fast as it can be.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/placement.h"

namespace sluice {

// Of one token through a part of the model, forward and backward, in any unit.
struct PartWork {
  double layer = 1;
  double embedding = 0;
  double head = 0;
};

// Deals `layers` equal layers to the stages of the placement. The busiest device has the least work
// possible; a device's layers are dealt to its stages so that these take as long as each other, as
// far as that goes. The first and the last stage may get none and are then embedding or head alone;
// every other gets at least one. Throws UserError when there are too few layers for that.
std::vector<std::int64_t> layers_by_work(const Placement& placement, std::int64_t layers,
                                         const PartWork& work);

}  // namespace sluice
