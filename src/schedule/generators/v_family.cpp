// The V schedules: two stages per device, device i holds stages i and 2p-1-i, so a microbatch runs
// down the devices and back up, and memory can be traded for bubble. How fast F and f walk over the
// devices sets both: V-Min keeps a third of 1F1B's activations, V-Half a half, V-ZB all of them,
// and then has no bubble. V-Half's block at p = 2 (F f forward of chunk 0 and 1,
// B b input gradient of chunk 1 and 0); the next microbatch six slots later, W where there is room:
//
//   device 0   F . . . f . . . B . . . . b
//   device 1   . . F f . . . . . . B . b .
#include "sluice/base/error.h"
#include "sluice/schedule/generators/building_block.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/slice_v.h"
#include "sluice/schedule/validate.h"

namespace sluice::generators {
namespace {

constexpr int kPeriod = 6;

// Start slots on device i of the forwards of chunk 0 and 1 and the backwards of chunk 1 and 0.
struct Row {
  int F, f, B, b;
};
using RowOf = Row (*)(int p, int i);

Row v_min_row(int p, int i) {
  const int e = p % 3 == 0 ? 2 : 0;  // else F and B, 2p apart, would collide
  return {i, 2 * p - 1 - i, 2 * p + e + i, 4 * p - 1 + e - i};
}

Row v_half_row(int p, int i) {
  const int e = p % 2 == 0 ? 3 : 0;  // else f and b, 3p apart, would collide
  return {2 * i, 3 * p - 2 - i, 3 * p - 1 + e + 2 * i, 6 * p - 2 + e - i};
}

Row v_zb_row(int p, int i) {
  return {4 * i, 6 * p - 5 - 2 * i, 6 * p - 4 + 4 * i, 12 * p - 9 - 2 * i};
}

template <RowOf row_of>
BuildingBlock v_block(const GeneratorOptions& o) {
  const int p = o.devices;
  BuildingBlock block;
  block.placement = Placement::vee(p, 2);
  block.period = kPeriod;
  block.forward.resize(static_cast<std::size_t>(2 * p));
  block.backward.resize(static_cast<std::size_t>(2 * p));
  for (int i = 0; i < p; ++i) {
    const Row row = row_of(p, i);
    const auto chunk_0 = static_cast<std::size_t>(i);
    const auto chunk_1 = static_cast<std::size_t>(2 * p - 1 - i);
    block.forward[chunk_0] = row.F;
    block.forward[chunk_1] = row.f;
    block.backward[chunk_1] = row.B;
    block.backward[chunk_0] = row.b;
  }
  return block;
}

Schedule repeated(std::string_view name, const BuildingBlock& block, const GeneratorOptions& o) {
  return schedule_from_passes(std::string(name), block.placement, o.microbatches, o.slices,
                              order_from_block(block, o.microbatches, o.slices));
}

// With slices: the order without them, opened in two places for the slices.
Schedule repeated_or_opened(std::string_view name, const BuildingBlock& block,
                            const GeneratorOptions& o) {
  if (o.slices == 1) return repeated(name, block, o);
  const int units = o.microbatches * o.slices - (o.slices - 1);
  Schedule schedule =
      schedule_from_passes(std::string(name), block.placement, o.microbatches, o.slices,
                           slice_v(order_from_block(block, units), o.slices));
  if (!validate(schedule).valid())
    throw user_error(
        "`slices` is {}: {} with {} devices and {} microbatches would deadlock; use zb-v", o.slices,
        name, o.devices, o.microbatches);
  return schedule;
}

Schedule generate_v_min(const GeneratorOptions& o) {
  return repeated("v-min", v_block<v_min_row>(o), o);
}
Schedule generate_v_half(const GeneratorOptions& o) {
  return repeated_or_opened("v-half", v_block<v_half_row>(o), o);
}
Schedule generate_v_zb(const GeneratorOptions& o) {
  return repeated_or_opened("v-zb", v_block<v_zb_row>(o), o);
}

}  // namespace

extern const Generator v_min;
const Generator v_min = {.name = "v-min",
                         .aliases = {},
                         .summary = "two stages per device in a V, least memory",
                         .bubble = "4p-5 stage ops (4p-7 if p%3=0), m >= 2p; less with slices",
                         .memory = "(2*floor((p+4)/3) + 2(k-1))/k",
                         .knobs = {.default_stages_per_device = 2, .slices = true},
                         .generate = generate_v_min,
                         .block = v_block<v_min_row>};

extern const Generator v_half;
const Generator v_half = {.name = "v-half",
                          .aliases = {},
                          .summary = "two stages per device in a V, half of 1F1B's memory",
                          .bubble = "3p-7 stage ops (p even), 3p-4 (p odd), 1 (p = 2); m >= 2p",
                          .memory = "2*floor((p+2)/2); less with slices",
                          .knobs = {.default_stages_per_device = 2, .slices = true},
                          .generate = generate_v_half,
                          .block = v_block<v_half_row>};

extern const Generator v_zb;
const Generator v_zb = {.name = "v-zb",
                        .aliases = {},
                        .summary = "two stages per device in a V, no bubble at 1F1B's memory",
                        .bubble = "0, m >= 2p",
                        .memory = "2p; less with slices",
                        .knobs = {.default_stages_per_device = 2, .slices = true},
                        .generate = generate_v_zb,
                        .block = v_block<v_zb_row>};

}  // namespace sluice::generators
