// 1F1B (PipeDream-Flush): device r runs p-r-1 forwards ahead, then one forward, one backward.
//
//   device 0  F0 F1 F2 F3 .  .  B0 F4 B1 ...
//   device 1  .  F0 F1 F2 .  B0 F3 B1 F4 ...
//   device 2  .  .  F0 F1 B0 F2 B1 F3 B2 ...
//   device 3  .  .  .  F0 B0 F1 B1 F2 B2 ...
#include <algorithm>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

Schedule generate(const GeneratorOptions& o) {
  std::vector<PassList> devices;
  for (int r = 0; r < o.devices; ++r) {
    const int warm_up = std::min(o.devices - r - 1, o.microbatches);
    PassList& program = devices.emplace_back();
    repeat(program, warm_up, {{OpKind::F}});
    repeat(program, o.microbatches - warm_up, {{OpKind::F}, {OpKind::B}});
    repeat(program, warm_up, {{OpKind::B}});
  }
  return schedule_from_passes("1f1b", Placement::linear(o.devices), o.microbatches, 1, devices);
}

}  // namespace

extern const Generator one_f_one_b;
const Generator one_f_one_b = {
    "1f1b", {},      "one forward, one backward (PipeDream-Flush)", "(p-1)(F+B)", "min(p-r, m)",
    {},     generate};

}  // namespace sluice::generators
