// Looped breadth-first: all forwards stage by stage, then all backwards, stages and microbatches
// both in reverse.
//
//   device 0  0F0 0F1 2F0 2F1 .   .   2B1 2B0 0B1 0B0
//   device 1  .   1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
#include "sluice/schedule/generators/generator.h"

namespace sluice::generators {
namespace {

Schedule generate(const GeneratorOptions& o) {
  const int m = o.microbatches;
  Schedule schedule;
  schedule.name = "looped-bfs";
  schedule.placement = Placement::looped(o.devices, o.stages_per_device);
  schedule.num_microbatches = m;
  for (int r = 0; r < o.devices; ++r) {
    Program& program = schedule.programs.emplace_back();
    const std::vector<int>& stages = schedule.placement.stages_of(r);
    for (const int stage : stages)
      for (int mb = 0; mb < m; ++mb)
        program.push_back(make_op(OpKind::F, stage, mb));
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
      for (int mb = m - 1; mb >= 0; --mb)
        program.push_back(make_op(OpKind::B, *stage, mb));
  }
  return schedule;
}

}  // namespace

extern const Generator looped_bfs;
const Generator looped_bfs = {"looped-bfs",
                              {"LoopedBFS"},
                              "all forwards stage by stage, then all backwards in reverse",
                              "(p-1)(F+B), times of one stage",
                              "v m",
                              {.default_stages_per_device = 2, .stages_per_device = true},
                              generate};

}  // namespace sluice::generators
