// A slow and obvious executor of schedules, to hold the validator against. Each device runs its
// program in order on named tensors that it really holds; between each ordered pair of devices
// there is one queue. It shares nothing with the validator but the Op: not even inputs_of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/schedule/schedule.h"

namespace sluice {

enum class ExecutionEnd {
  completed,  // every op of the schedule ran exactly once, and no message is left over
  stuck,      // devices wait, and nobody can go on
  wrong       // a device did what it must not: the text says what
};

struct RunResult {
  ExecutionEnd end = ExecutionEnd::completed;
  std::string text;  // "" when completed
};

enum class Transfers {
  rendezvous,  // the schedule's own SEND and RECV: a send ends only once its receive is posted, a
               // receive is posted without blocking and awaited by the op that uses it
  instant      // the schedule has none: what an op gives is at once where it is used
};

// Runs a schedule. Without a seed the devices take turns, one op (or group) each; with one, a
// random device that can go on goes next.
RunResult run_schedule(const Schedule& schedule, Transfers transfers,
                       std::optional<std::uint32_t> seed = std::nullopt);

}  // namespace sluice
