// GPipe: all forwards, then all backwards. With slices it is TeraPipe: what flows is one slice of a
// microbatch, forwards first to last, backwards last to first, and the bubble is k times shorter.
//
//   device 0  F0 F1 F2 .  .  B0 B1 B2       k = 2:  F0.0 F0.1 .    .    B0.1 B0.0
//   device 1  .  F0 F1 F2 B0 B1 B2                  .    F0.0 F0.1 B0.1 B0.0
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

Schedule generate(const GeneratorOptions& o) {
  PassList program;
  repeat(program, o.microbatches * o.slices, {{OpKind::F}});
  repeat(program, o.microbatches * o.slices, {{OpKind::B}});
  return schedule_from_passes("gpipe", Placement::linear(o.devices), o.microbatches, o.slices,
                              std::vector<PassList>(static_cast<std::size_t>(o.devices), program));
}

}  // namespace

extern const Generator gpipe;
const Generator gpipe = {
    "gpipe",        {"GPipe"}, "all forwards, then all backwards; with slices TeraPipe",
    "(p-1)(F+B)/k", "m",       {.slices = true},
    generate};

}  // namespace sluice::generators
