// ZB-H1 and ZB-H2: 1F1B with the backward split in two, so that W fills what was bubble. In round x
// device d does F of microbatch x, I of x - r(p-1-d) and W of x - r(p-1). ZB-H1 has r = 1 and
// 1F1B's warm-up; ZB-H2 has r = 2, twice the warm-up and no bubble at equal times. ZB-H1:
//
//   device 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
//   device 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//   device 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

Schedule generate_zb_h(std::string_view name, const GeneratorOptions& options, int r) {
  const int p = options.devices;
  const int m = options.microbatches;
  const int w_lag = r * (p - 1);
  std::vector<PassList> devices(static_cast<std::size_t>(p));
  for (int d = 0; d < p; ++d) {
    PassList& passes = devices[static_cast<std::size_t>(d)];
    const int i_lag = r * (p - 1 - d);
    const auto runs = [m](int microbatch) { return microbatch >= 0 && microbatch < m; };
    for (int x = 0; x < m + w_lag; ++x) {
      if (runs(x)) passes.push_back({OpKind::F});
      if (runs(x - i_lag)) passes.push_back({OpKind::I});
      if (runs(x - w_lag)) passes.push_back({OpKind::W});
    }
  }
  return schedule_from_passes(std::string(name), Placement::linear(p), m, 1, devices);
}

}  // namespace

extern const Generator zb_h1;
const Generator zb_h1 = {
    .name = "zb-h1",
    .aliases = {},
    .summary = "1F1B with split backward: a third of its bubble in the same memory",
    .bubble = "(p-1)(F+I-W)",
    .memory = "p",
    .knobs = {},
    .generate = [](const GeneratorOptions& options) { return generate_zb_h("zb-h1", options, 1); }};

extern const Generator zb_h2;
const Generator zb_h2 = {
    .name = "zb-h2",
    .aliases = {},
    .summary = "split backward and twice the warm-up: no bubble at equal times",
    .bubble = "(p-1)(F+I-2W)",
    .memory = "2p-1",
    .knobs = {},
    .generate = [](const GeneratorOptions& options) { return generate_zb_h("zb-h2", options, 2); }};

}  // namespace sluice::generators
