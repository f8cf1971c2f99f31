// What happened when, of a simulated or a real run. The simulator and the runtime fill it in; the
// renderers of this folder draw it.
#pragma once

#include <string>
#include <vector>

#include "sluice/schedule/op.h"

namespace sluice {

struct Span {
  Op op;
  double start = 0;
  double end = 0;
  // Index of the message it had to wait for; -1: it started when its device was free.
  int message = -1;
};

// One tensor travelling between two devices; `op` is the SEND of the producer.
struct Message {
  Op op;
  int from = 0;
  int to = 0;
  int span = 0;  // index of the span of device `from` that produced it
  double start = 0;
  double end = 0;
};

// The gradients of one stage on their way over the data-parallel link of a device, beside its
// compute; `op` is the REDUCE_GRAD.
struct Reduction {
  Op op;
  int span = 0;  // index of the span before it in the program
  double start = 0;
  double end = 0;
};

struct MemoryPoint {
  double time = 0;
  double value = 0;  // from this time on
};

struct DeviceTimeline {
  std::string group;                  // the run it is of, where a timeline holds several; else ""
  std::vector<Span> spans;            // compute, in order; never overlapping unless joined
  std::vector<Reduction> reductions;  // in order; those that take no time are left out
  std::vector<MemoryPoint> memory;    // a step curve, times ascending
  double peak = 0;                    // largest value of the curve
  double busy = 0;                    // time computing
};

struct Timeline {
  std::string name;      // schedule name
  std::string caption;   // one line under the title: sizes, bubble, peak
  bool seconds = false;  // times are seconds; otherwise abstract units
  bool bytes = false;    // memory is bytes; otherwise stage-activations
  int num_stages = 1;
  int num_stages_per_device = 1;
  int num_slices = 1;
  int num_pipes = 1;
  double makespan = 0;
  std::vector<DeviceTimeline> devices;
  std::vector<Message> messages;

  std::string text(const Op& op) const { return op_text(op, num_slices > 1, num_pipes > 1); }
  std::size_t number_in_group(std::size_t device) const;
  // "device 3", or "measured 3": the number within its group.
  std::string device_name(std::size_t device) const;
};

// Adds the devices of another run of the same schedule, as a group of their own, with one time
// origin: "measured" beside "predicted". The name, caption and sizes stay.
void add_run(Timeline& timeline, const std::string& group, Timeline run);

}  // namespace sluice
