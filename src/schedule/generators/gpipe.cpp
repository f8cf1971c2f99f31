// GPipe: all forwards, then all backwards.
//
//   device 0  F0 F1 F2 .  .  B0 B1 B2
//   device 1  .  F0 F1 F2 B0 B1 B2
#include "schedule/generators/generator.h"
#include "schedule/generators/passes.h"

namespace sluice::generators {
namespace {

Schedule generate(const GeneratorOptions& o) {
  PassList program;
  repeat(program, o.microbatches, {{OpKind::F}});
  repeat(program, o.microbatches, {{OpKind::B}});
  return schedule_from_passes("gpipe", Placement::linear(o.devices), o.microbatches, 1,
                              std::vector<PassList>(static_cast<std::size_t>(o.devices), program));
}

}  // namespace

extern const Generator gpipe;
const Generator gpipe = {"gpipe", {"GPipe"}, "all forwards, then all backwards", "(p-1)(F+B)", "m",
                         {},      generate};

}  // namespace sluice::generators
