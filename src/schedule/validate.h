// The proof that a schedule from any source can run: every op exactly once, inputs before uses, per
// ordered pair of devices the sends in the order of the receives, and no deadlock even when a send
// ends only once its receive is posted. The proof is over the lowered form, which is what runs.
#pragma once

#include <string>
#include <vector>

#include "sluice/schedule/problem.h"
#include "sluice/schedule/schedule.h"
#include "sluice/schedule/staleness.h"

namespace sluice {

struct ValidateOptions {
  int max_buffers = -1;  // more receive buffers than this on a device is a problem; -1: any number
  StalenessBounds staleness = {};  // of a schedule of several windows
};

struct Validation {
  std::vector<Problem> problems;     // empty: proved
  std::vector<int> receive_buffers;  // per device: receives posted and not yet consumed, at most
  // The form that was proved: the schedule itself where it holds communication, else lowered. Empty
  // (and receive_buffers too) where an op's numbers, device or group are wrong.
  Schedule lowered;
  bool valid() const { return problems.empty(); }
};

// Positions in problems count the ops of the program that was given. Only the problem of too many
// receive buffers may need a place that the lowered program alone has; its text says so.
Validation validate(const Schedule& schedule, const ValidateOptions& options = {});

}  // namespace sluice
