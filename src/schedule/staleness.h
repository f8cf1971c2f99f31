// How old the weights are that an asynchronous schedule computes with.
//
// Where updates come between the forwards and backwards of a microbatch, the two may use different
// weights: the mismatch counts the updates between them. The delay counts the updates that a
// forward's weights lack, of those of the windows before its own. Both follow from the programs
// alone, since an update has its place among a device's ops, and so they hold at any timing.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/schedule/problem.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// An op of a microbatch and how many updates it is off; -1: no op is off.
struct OffBy {
  int updates = 0;
  int device = -1;
  int position = -1;  // of the backward (mismatch) or forward (delay) in the device's program
};

struct Staleness {
  OffBy mismatch, delay;  // the worst of the schedule
  // Windows after which the figures below repeat, of the last ones twice in a row; 0: they do not,
  // and more windows may be worse.
  int period = 0;
  // Of its last window, or of the last period: how many (stage, microbatch, slice) have each
  // mismatch, from 0 up.
  std::vector<std::int64_t> pairs_by_mismatch;
  int mismatched_microbatches = 0;  // of a window, with a mismatch anywhere
  int max_delay = 0;
  bool steady() const { return period > 0; }
  // Per device, the most at a time: versions of the weights, summed over the stages that it holds;
  // and windows whose gradients are being added up.
  std::vector<int> weight_copies, accumulators;

  int max_mismatch() const { return static_cast<int>(pairs_by_mismatch.size()) - 1; }
  // The share of pairs that have a mismatch.
  double mismatch_share() const;
};

// REQUIRES: every op's numbers are right, and each comes once (validate). Positions are those of
// the schedule, compute-only or lowered.
Staleness staleness_of(const Schedule& schedule);

// Per device, the most that all versions of its stages take at a time, where one version of a stage
// takes so much. REQUIRES: as staleness_of.
std::vector<std::int64_t> weights_held(const Schedule& schedule,
                                       const std::vector<std::int64_t>& of_stage);

// The largest values that a schedule may have; -1: any.
struct StalenessBounds {
  int max_mismatch = -1;
  int max_delay = -1;
};

// Where the schedule exceeds a bound: the worst op. REQUIRES: as staleness_of.
std::vector<Problem> staleness_problems(const Schedule& schedule, const StalenessBounds& bounds);

}  // namespace sluice
