// Where in the schedule it happened: a few ops before and after one op, on its device and on those
// around it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

// When each op would start if every compute op took one unit and messages took none, per device
// and position. Other ops have the time at which their device comes to them. Positions that are
// never reached, which a valid schedule has none of, have -1.
std::vector<std::vector<int>> unit_times(const Schedule& schedule);

// The compute ops of up to 16 ranks and up to 9 units each way around one op, a row per rank (it
// drives the device of its number) and a column per unit, the op in brackets:
//
//   rank 0  0F0  0F1  .    0B0  0F2  0B1  0F3  0B2  .    0B3
//   rank 1  .    1F0  1B0  1F1 [1B1] 1F2  1B2  1F3  1B3  .
//
// Of a send or receive, the compute op that it serves is marked; past the end of the program, none
// is. The last line has no newline.
std::string grid_around(const Schedule& schedule, int rank, std::size_t position);

}  // namespace sluice
