// Timelines for the tests of this folder: a schedule played by the plain rule that a device runs
// its program in order and an op waits for its inputs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/schedule.h"
#include "sluice/trace/timeline.h"

namespace sluice::testing {

struct SampleTimes {
  double f = 1;
  double i = 1;
  double w = 1;
  double comm = 0;
};

// Programs from letters (F, I, W, B; lower case: the second stage of the device), where the n-th
// occurrence of a letter is unit n: slice n mod k of microbatch n / k, backwards from the last.
Schedule schedule_from_letters(std::string name, Placement placement, int num_slices,
                               const std::vector<std::string_view>& rows);

Timeline play(const Schedule& schedule, const SampleTimes& times);

// V-Half, 4 devices, 8 microbatches.
Timeline v_half_sample();
// One microbatch through two devices, 1F1B, one unit of latency: small enough for a golden.
Timeline tiny_sample();
// Two slices per microbatch, two devices, one backward of twice the time.
Timeline sliced_sample();
// Two devices of two stages with an F and a B that run as one, at the same time.
Timeline joined_sample();
// 1F1B of any size.
Timeline one_f_one_b_sample(int num_devices, int num_microbatches);

}  // namespace sluice::testing
