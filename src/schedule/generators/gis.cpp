// GIS, grouped interleaving (PipeOffload): v stages per device, looped; microbatches go in groups
// of g, and a group passes chunk 0 on every device, then chunk 1, ... A device starts an F every
// third slot, for I and W come between, and warm-up holds no more forwards than the first backward
// needs: peak g(v-1)+p, not interleaved 1F1B's pv+p-1. p = v = g = 2 (f i w: chunk 1):
//
//   device 0   F0 F1 f0 f1 .  i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 ...
//   device 1   .  F0 F1 f0 i0 w0 f1 i1 w1 F2 I0 W0 F3 I1 W1 f2 i2 ...
#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

// Passes of device i, by start slot.
PassList gis_device(int p, int v, int g, int m, int i) {
  struct Timed {
    int slot;
    Pass pass;
  };
  std::vector<Timed> timed;
  timed.reserve(static_cast<std::size_t>(3 * v * m));
  const int first_backward = 3 * g * (v - 1) + i + 3 * (p - 1 - i) + 1;
  for (int c = 0; c < v; ++c)
    for (int j = 0; j < m; ++j) {
      const int group = j / g;
      const int x = 3 * (g * v * group + g * c + j % g);
      const int back = first_backward + x;
      timed.push_back({x + i, {OpKind::F, c}});
      timed.push_back({back, {OpKind::I, v - 1 - c}});
      timed.push_back({back + 1, {OpKind::W, v - 1 - c}});
    }
  std::sort(timed.begin(), timed.end(),
            [](const Timed& a, const Timed& b) { return a.slot < b.slot; });
  PassList list;
  list.reserve(timed.size());
  for (const Timed& entry : timed)
    list.push_back(entry.pass);
  return list;
}

Schedule generate(const GeneratorOptions& o) {
  const int p = o.devices;
  const int v = o.stages_per_device;
  const int g = o.group_size == 0 ? p : o.group_size;
  if (g < (p + 1) / 2 || g > p)
    throw user_error("`group_size` is {}: gis on {} devices needs {} to {}", g, p, (p + 1) / 2, p);
  std::vector<PassList> devices;
  for (int i = 0; i < p; ++i)
    devices.push_back(gis_device(p, v, g, o.microbatches, i));
  return schedule_from_passes("gis", Placement::looped(p, v), o.microbatches, 1, devices);
}

}  // namespace

extern const Generator gis;
const Generator gis = {
    .name = "gis",
    .aliases = {},
    .summary = "interleaved in groups, split backward: interleaving at 1F1B's memory or less",
    .bubble = "2(p-1) + (p-N)(v-1) stage ops; N divides m",
    .memory = "N(v-1) + p",
    .knobs = {.default_stages_per_device = 2, .stages_per_device = true, .group_size = true},
    .generate = generate};

}  // namespace sluice::generators
