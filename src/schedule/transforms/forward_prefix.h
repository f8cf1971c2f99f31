// How far the devices of a lowered schedule can go on forwards alone.
#pragma once

#include <cstddef>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

// Per device the length of the longest beginning of its program that holds only forwards and their
// messages, such that the beginnings of all devices are closed: what is sent inside them is
// received inside them, and the other way round. All devices can run theirs and then either go on,
// or drop the results and start again: no message is under way. REQUIRES: `lowered` is valid.
std::vector<std::size_t> closed_forward_prefixes(const Schedule& lowered);

}  // namespace sluice
