#include "sluice/schedule/generators/passes.h"

#include <array>

namespace sluice {

void repeat(PassList& list, int count, std::initializer_list<Pass> passes) {
  for (int n = 0; n < count; ++n)
    list.insert(list.end(), passes);
}

void cut(PassList& list, int num_units) {
  std::vector<std::array<int, 4>> units;  // per chunk and kind
  std::erase_if(list, [&](const Pass& pass) {
    const auto chunk = static_cast<std::size_t>(pass.chunk);
    if (chunk >= units.size()) units.resize(chunk + 1, {0, 0, 0, 0});
    return units[chunk][static_cast<std::size_t>(pass.kind)]++ >= num_units;
  });
  list.shrink_to_fit();
}

Schedule schedule_from_passes(std::string name, Placement placement, int num_microbatches,
                              int num_slices, const std::vector<PassList>& devices) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.placement = std::move(placement);
  schedule.num_microbatches = num_microbatches;
  schedule.num_slices = num_slices;
  schedule.programs.resize(devices.size());
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const std::vector<int>& stages = schedule.placement.stages_of(static_cast<int>(d));
    std::vector<std::array<int, 4>> next(stages.size(), {0, 0, 0, 0});  // unit per chunk and kind
    Program& program = schedule.programs[d];
    program.reserve(devices[d].size());
    for (const Pass& pass : devices[d]) {
      const auto chunk = static_cast<std::size_t>(pass.chunk);
      const int unit = next[chunk][static_cast<std::size_t>(pass.kind)]++;
      const int microbatch = unit / num_slices;
      const int slice = unit % num_slices;
      if (microbatch >= num_microbatches) continue;
      program.push_back(make_op(pass.kind, stages[chunk], microbatch,
                                pass.kind == OpKind::F ? slice : num_slices - 1 - slice, 0,
                                pass.joined));
    }
  }
  return schedule;
}

}  // namespace sluice
