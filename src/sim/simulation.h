// What a simulation is asked for and what it gives (simulate.h).
#pragma once

#include <vector>

#include "sluice/trace/timeline.h"

namespace sluice {

struct SimulateOptions {
  bool timeline = false;    // record every span, message and memory step
  double keep_after_i = 1;  // share of a stage-activation that stays between I and W
};

struct DeviceResult {
  double first_start = 0;
  double last_end = 0;  // of its compute
  double busy = 0;
  double peak_activations = 0;  // 1 from the start of F to the end of W or B; slices as fractions
  double peak_bytes = 0;        // 0 unless the costs are measured

  double span() const { return last_end - first_start; }
};

struct Simulation {
  double makespan = 0;           // first start to last end over all devices, reductions too
  double span = 0;               // longest device, its first start to its last end
  double ideal = 0;              // largest busy time of a device
  double bubble = 0;             // span - ideal
  double bubble_rate = 0;        // bubble / span
  double bubble_fraction = 0;    // bubble / ideal
  double exposed_reduction = 0;  // how much later the step ends because of reductions
  double max_peak = 0;           // largest peak_activations
  double max_peak_bytes = 0;
  std::vector<DeviceResult> devices;
  Timeline timeline;  // empty unless asked for
};

}  // namespace sluice
