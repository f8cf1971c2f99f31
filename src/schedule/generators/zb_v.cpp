// ZB-V: two stages per device in a V, every letter placed by hand, no bubble at unit times; and,
// ours, the same with each microbatch cut into k slices. F, f: forward of the first, second stage
// of the device; B, b: input gradient of the second, first; W, w their weight gradients. p = 2:
//
//   device 0  F F F f B W f B W F b w f B W ...
//   device 1  . F f F f B W F b w f B W F b ...
#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

constexpr Pass F = {OpKind::F, 0}, f = {OpKind::F, 1};
constexpr Pass B = {OpKind::I, 1}, b = {OpKind::I, 0};
constexpr Pass W = {OpKind::W, 1}, w = {OpKind::W, 0};

Schedule generate(const GeneratorOptions& o) {
  const int p = o.devices;
  const int extra = o.slices - 1;  // a microbatch's last slice goes backward first, so wait for it
  const int units = std::max(o.microbatches * o.slices, 2 * p - 1 + extra);
  if (6.0 * p * units > 1e9)
    throw user_error(
        "`devices` is {}: zb-v lays out at least 2p-1 microbatches, {:.3g} ops in all; at most "
        "1e+09 "
        "are supported; use fewer devices",
        p, 6.0 * p * units);
  std::vector<PassList> devices;
  for (int r = 0; r < p; ++r) {
    PassList& program = devices.emplace_back();
    // Warm-up.
    repeat(program, 2 * (p - r) - 1, {F});
    repeat(program, r + extra, {f, F});
    repeat(program, p - r, {f, B, W});
    // Steady state, until no forward is left.
    int first_left = units - (2 * (p - r) - 1 + r + extra);
    int second_left = units - (p + extra);
    while (first_left > 0 || second_left > 0) {
      if (first_left-- > 0) repeat(program, 1, {F});
      repeat(program, 1, {b, w, f, B, W});
      --second_left;
    }
    repeat(program, extra, {b, w, B, W});
    // Cool-down.
    repeat(program, r, {b, B});
    repeat(program, p - r, {b, w});
    repeat(program, r, {W});  // what the (b, B) above left behind
    repeat(program, r, {w});
    cut(program, o.microbatches * o.slices);
  }
  return schedule_from_passes("zb-v", Placement::vee(p, 2), o.microbatches, o.slices, devices);
}

}  // namespace

extern const Generator zb_v;
const Generator zb_v = {"zb-v",
                        {"ZBVZeroBubble"},
                        "zero bubble in a V, handcrafted; slices lower its memory",
                        "0 at F=I=W, m >= 2p-1; 2(p-1)(I-W)/k when W <= F <= I",
                        "(2p + 2(k-1))/k on every device",
                        {.default_stages_per_device = 2, .slices = true},
                        generate};

}  // namespace sluice::generators
