// One update of a weight's elements, on the CPU or a GPU: plain SGD, or with two moments AdamW or
// NAdam (cuda/functions.h has the numbers).
#pragma once

#include "sluice/cuda/functions.h"

namespace sluice {

void update(const cuda::Update& update);

}  // namespace sluice
