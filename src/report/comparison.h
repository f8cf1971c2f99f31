// Schedules side by side on the same model.
//
// The model is held fixed: times are those of a device and a microbatch, so a stage of a device
// that holds two takes half of them, and peaks count device-microbatches. With a profile, its
// layers are dealt to the stages of each schedule.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/report/pricing.h"
#include "sluice/sim/simulate.h"

namespace sluice {

struct ComparisonRequest {
  std::vector<const Generator*> generators;  // empty: all that need no building block
  int devices = 0;
  int microbatches = 0;
  int stages_per_device = 2;
  double memory_cap = 0;  // device-microbatches; 0: none
  Slicing slicing;
  Pricing pricing;               // times of a device
  std::optional<Costs> profile;  // instead of them
};

struct ComparedRow {
  std::string label;
  std::string command;  // gives this schedule and these times
  int slices = 1;
  int stages_per_device = 1;
  Simulation sim;
  double peak = 0;           // device-microbatches
  double relative_peak = 0;  // to the reference's; of bytes where they are known
  double relative_makespan = 0;
  bool frontier = false;  // no faster row needs as little memory

  double memory() const { return sim.max_peak_bytes > 0 ? sim.max_peak_bytes : peak; }
};

// A schedule that goes on from one update of the weights to the next: what one more window takes.
struct ComparedWindow {
  std::string label;
  std::string command;
  double seconds = 0;           // or whatever the unit of the times is
  double relative_seconds = 0;  // to the makespan of the reference's step
  double at_work = 0;           // share of it that the busiest device works
  int windows = 0;              // that were looked at
  bool steady = false;          // else times are a mean, and versions those of the last window
  double peak = 0;              // device-microbatches
  int weight_copies = 1;        // at most on a device, each of 1/p of the model
  int max_mismatch = 0;
  double mismatch_share = 0;
  int max_delay = 0;
};

struct Comparison {
  std::vector<ComparedRow> rows;        // fastest first, by makespan
  std::vector<ComparedWindow> windows;  // likewise
  std::string reference;                // 1f1b, or the fastest row where that is not to be had
  std::vector<std::pair<std::string, std::string>> left_out;  // label, reason
};

Comparison compare_schedules(const ComparisonRequest& request);
// Its windows and what of them is left out; relative_seconds is not filled in.
void compare_windows(const ComparisonRequest& request, Comparison& comparison);

// REQUIRES: rows or windows.
std::string comparison_text(const ComparisonRequest& request, const Comparison& comparison);
std::string comparison_json(const ComparisonRequest& request, const Comparison& comparison);
std::string comparison_svg(const ComparisonRequest& request, const Comparison& comparison);

}  // namespace sluice
