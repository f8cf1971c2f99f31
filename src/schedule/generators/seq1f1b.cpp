// Seq1F1B: each microbatch is cut along the sequence into k slices, and the unit that flows is one
// slice. Forwards take the slices first to last, backwards last to first, so device r runs k-1
// forwards more ahead than 1F1B. p = 2, k = 2:
//
//   device 0  F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 ...
//   device 1  .    F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 ...
//
// With the backward split and W delayed it is seq-zb; with v stages per device seq1f1b-i.
#include <algorithm>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

Schedule one_stage(const GeneratorOptions& o, bool split, std::string name) {
  const int p = o.devices, k = o.slices;
  const int units = o.microbatches * k;
  std::vector<PassList> devices;
  for (int r = 0; r < p; ++r) {
    PassList& program = devices.emplace_back();
    int backwards = 0;
    const auto backward = [&] {
      if (!split) return program.push_back({OpKind::B});
      program.push_back({OpKind::I});
      if (backwards++ >= r) program.push_back({OpKind::W});
    };
    const int warm_up = std::min(p - r + k - 2, units);
    repeat(program, warm_up, {{OpKind::F}});
    for (int n = warm_up; n < units; ++n) {
      program.push_back({OpKind::F});
      backward();
    }
    for (int n = 0; n < warm_up; ++n)
      backward();
    if (split) repeat(program, std::min(r, units), {{OpKind::W}});
  }
  return schedule_from_passes(std::move(name), Placement::linear(p), o.microbatches, k, devices);
}

Schedule generate_seq1f1b(const GeneratorOptions& o) { return one_stage(o, false, "seq1f1b"); }
Schedule generate_seq_zb(const GeneratorOptions& o) { return one_stage(o, true, "seq-zb"); }

// Units run on one stage in groups of g before the next stage's turn. Whole microbatches per group
// (g a multiple of k) never deadlock, and ceil(p/k) of them keep every device fed.
Schedule generate_interleaved(const GeneratorOptions& o) {
  const int p = o.devices, k = o.slices, v = o.stages_per_device;
  const int group_microbatches = (p + k - 1) / k;
  const int group = k * group_microbatches;
  // Built for whole groups; microbatches beyond m are left out.
  const int groups = (o.microbatches + group_microbatches - 1) / group_microbatches;
  const int units = groups * group * v;
  Schedule schedule;
  schedule.name = "seq1f1b-i";
  schedule.placement = Placement::looped(p, v);
  schedule.num_microbatches = o.microbatches;
  schedule.num_slices = k;
  for (int r = 0; r < p; ++r) {
    Program& program = schedule.programs.emplace_back();
    const auto emit = [&](OpKind kind, int n) {
      const int chunk = n % (group * v) / group;
      const int unit = n / (group * v) * group + n % group;
      if (unit / k >= o.microbatches) return;
      const bool forward = kind == OpKind::F;
      program.push_back(make_op(kind, (forward ? chunk : v - 1 - chunk) * p + r, unit / k,
                                forward ? unit % k : k - 1 - unit % k));
    };
    const int warm_up = std::min((v - 1) * group + 2 * (p - r - 1) + k - 1, units);
    for (int n = 0; n < warm_up; ++n)
      emit(OpKind::F, n);
    for (int n = warm_up; n < units; ++n) {
      emit(OpKind::F, n);
      emit(OpKind::B, n - warm_up);
    }
    for (int n = units - warm_up; n < units; ++n)
      emit(OpKind::B, n);
  }
  return schedule;
}

}  // namespace

extern const Generator seq1f1b;
const Generator seq1f1b = {"seq1f1b",
                           {},
                           "1F1B over slices of the sequence",
                           "(p-1)(F+B)/k",
                           "(p-r+k-1)/k",
                           {.slices = true},
                           generate_seq1f1b};

extern const Generator seq1f1b_i;
const Generator seq1f1b_i = {
    "seq1f1b-i",
    {},
    "interleaved 1F1B over slices, any k",
    "(p-1)(F+B)/k, times of one stage; g/k divides m",
    "((v-1)g + 2(p-r-1) + k)/k, g = k ceil(p/k)",
    {.default_stages_per_device = 2, .stages_per_device = true, .slices = true},
    generate_interleaved};

extern const Generator seq_zb;
const Generator seq_zb = {"seq-zb",
                          {},
                          "Seq1F1B with split backward and delayed W, as in ZB-1p",
                          "(p-1)(F+I-W)/k",
                          "(p+k-1)/k on every device",
                          {.slices = true},
                          generate_seq_zb};

}  // namespace sluice::generators
