// 1F1B-V: 1F1B in a V, with the backward in one piece (B, two slots) and two thirds of 1F1B's
// memory. Device i holds stages i and 2p-1-i. Its block at p = 2 (F f forward, B b backward of
// chunk 1 and 0), the next microbatch six slots later:
//
//   device 0   F . . f B = . . . . . . . b =
//   device 1   . F f . . . . . . B = b = . .
#include "sluice/schedule/generators/building_block.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice::generators {
namespace {

BuildingBlock block_of(const GeneratorOptions& o) {
  const int p = o.devices;
  BuildingBlock block;
  block.placement = Placement::vee(p, 2);
  block.period = 6;
  block.fused = true;
  const int num_stages = 2 * p;
  block.backward.resize(static_cast<std::size_t>(num_stages));
  for (int s = 0; s < num_stages; ++s)
    block.forward.push_back(s);
  // Backwards follow each other without a gap, except that every third time three slots are left
  // for the forwards that the next microbatches have there.
  int slot = 2 * p + (p % 3 == 0 ? 3 : 0);
  int count = (3 - (p + 2) % 3) % 3;
  for (int s = num_stages - 1; s >= 0; --s) {
    block.backward[static_cast<std::size_t>(s)] = slot;
    slot += 2;
    if (++count == 3) {
      count = 0;
      slot += 3;
    }
  }
  return block;
}

Schedule generate(const GeneratorOptions& o) {
  const BuildingBlock block = block_of(o);
  return schedule_from_passes("1f1b-v", block.placement, o.microbatches, 1,
                              order_from_block(block, o.microbatches));
}

}  // namespace

extern const Generator one_f_one_b_v;
const Generator one_f_one_b_v = {
    .name = "1f1b-v",
    .aliases = {},
    .summary = "two stages per device in a V, fused backward, 2/3 of 1F1B's memory",
    .bubble = "5p-5 stage ops (p%3=1), 5p-7 (p%3=2, p > 2), about 5p-8 (p%3=0)",
    .memory = "2*(floor(2p/3)+1)",
    .knobs = {.default_stages_per_device = 2},
    .generate = generate,
    .block = block_of};

}  // namespace sluice::generators
