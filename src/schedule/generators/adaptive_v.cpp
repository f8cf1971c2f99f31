// Adaptive V: the best V schedule under any memory cap. Every building block of period 6 is
// repeated, its warm-up and cool-down are rewritten, its holes filled; the shortest span wins. With
// slices the blocks repeat slices, as v-min's does.
// Three devices, six microbatches, cap 5 (F I W: chunk 0; f i w: chunk 1); a bubble of 3:
//   FFFF.fiwfiw.IWfiwFIWfiwFIWfiw.fiIwIWIWW
//   .FFFf.fiwFiIWfw.iIWfFwiIWfFwifIwiIwIWWW
//   ..FfFfF.iwIifWwFIifWwFIifWwFfIiIwiIwWWW
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/generators/adaptive_v_search.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {

namespace {

Pass pass_of(vee::Letter letter) {
  switch (letter) {
    case vee::F0: return {OpKind::F, 0};
    case vee::F1: return {OpKind::F, 1};
    case vee::I1: return {OpKind::I, 1};
    case vee::I0: return {OpKind::I, 0};
    case vee::W1: return {OpKind::W, 1};
    case vee::W0: return {OpKind::W, 0};
  }
  return {};
}

void check_options(const GeneratorOptions& options) {
  if (!(options.keep_after_i >= 0 && options.keep_after_i <= 1))
    throw user_error(
        "`keep_after_i` is {}: needs the share of activation memory kept between I and W, from 0 "
        "to 1",
        number(options.keep_after_i));
  const int p = options.devices;
  const double passes = 6.0 * p * std::max(options.microbatches * options.slices, 2 * p);
  if (passes > 2e8)
    throw user_error(
        "`devices` is {}: adaptive-v lays out at least 2p microbatches, {:.3g} ops in all; at most "
        "2e+08 are supported; use fewer devices",
        p, passes);
}

// "4 devices and 8 microbatches of 2 slices"
std::string size_text(const GeneratorOptions& options) {
  std::string text =
      fmt::format("{} devices and {} microbatches", options.devices, options.microbatches);
  if (options.slices > 1) text += fmt::format(" of {} slices", options.slices);
  return text;
}

GeneratorOptions without_slices(GeneratorOptions options) {
  options.slices = 1;
  options.slice_sizes.clear();
  return options;
}

std::optional<vee::Order> find_order(const GeneratorOptions& options) {
  vee::Search search(options);
  if (options.slices > 1) {
    vee::Search unsliced(without_slices(options));
    if (const vee::Order* order = unsliced.best()) search.consider_sliced(*order);
  }
  const vee::Order* order = search.best();
  return order ? std::optional(*order) : std::nullopt;
}

// The peaks by device of an order that exceeds the cap by little.
std::vector<double> nearest_peaks(const GeneratorOptions& options) {
  vee::Search search(options), unsliced(without_slices(options));
  return std::min(search.nearest(), unsliced.nearest()).peaks;
}

// The least cap above one that is too low, or close to it: half a slice is taken off each number
// that was raised, as long as there is an order and the tries last.
MemoryCap enough_for(GeneratorOptions options) {
  const MemoryCap wanted = *options.memory_cap;
  const auto at = [](int n) { return static_cast<std::size_t>(n); };
  const auto held = [&](const std::vector<double>& peaks, int n) {
    return wanted.size() == 1 ? *std::max_element(peaks.begin(), peaks.end()) : peaks[at(n)];
  };
  const std::vector<double> nearest = nearest_peaks(options);
  std::vector<double> caps;
  for (int n = 0; n < static_cast<int>(wanted.size()); ++n)
    caps.push_back(std::max(wanted.of(n), held(nearest, n)));
  // Under one cap and with equal slices, no device waits for room: this is the least.
  if (wanted.uniform() && options.slice_sizes.empty()) return caps;
  int tries = 32;
  for (int n = 0; n < static_cast<int>(wanted.size()); ++n)
    while (caps[at(n)] > wanted.of(n) && tries-- > 0) {
      std::vector<double> lower = caps;
      lower[at(n)] = std::max(wanted.of(n), caps[at(n)] - 0.5 / options.slices);
      options.memory_cap = lower;
      if (!find_order(options)) break;
      caps = lower;
    }
  return caps;
}

// "from 4 to 8 stage-activations". Equal slices cannot use more than zb-v.
std::string range_text(const GeneratorOptions& options, double least) {
  const int p = options.devices, k = options.slice_sizes.empty() ? options.slices : 1;
  return fmt::format("from {} to {} stage-activations", number(least),
                     number((2.0 * p + 2 * (k - 1)) / k));
}

CapTooLow too_low(const GeneratorOptions& options) {
  const MemoryCap& cap = *options.memory_cap;
  if (!options.suggest_cap)
    return {fmt::format("`memory_cap` is {}: adaptive-v has no order that small", cap.text()), cap};
  const MemoryCap enough = enough_for(options);
  const std::string needs =
      cap.size() == 1
          ? fmt::format("needs {}; raise the cap", range_text(options, enough.most()))
          : fmt::format("has no order that small; {} stage-activations would do", enough.text());
  return {fmt::format("`memory_cap` is {}: adaptive-v with {} {}", cap.text(), size_text(options),
                      needs),
          enough};
}

Schedule generate_adaptive_v(const GeneratorOptions& given) {
  check_options(given);
  GeneratorOptions options = given;
  if (std::ranges::adjacent_find(options.slice_sizes, std::not_equal_to<>()) ==
      options.slice_sizes.end())
    options.slice_sizes.clear();  // equal slices
  if (!options.memory_cap) {
    GeneratorOptions none = options;
    none.memory_cap = 0;
    throw user_error("adaptive-v needs `memory_cap` X: {} for {}",
                     range_text(options, enough_for(none).most()), size_text(options));
  }
  const std::optional<vee::Order> order = find_order(options);
  if (!order) throw too_low(options);

  const int p = options.devices;
  std::vector<PassList> devices(static_cast<std::size_t>(p));
  for (int d = 0; d < p; ++d)
    for (const vee::Letter letter : order->row(d))
      devices[static_cast<std::size_t>(d)].push_back(pass_of(letter));
  return schedule_from_passes("adaptive-v", Placement::vee(p, 2), options.microbatches,
                              options.slices, devices);
}

}  // namespace

extern const Generator adaptive_v;
const Generator adaptive_v = {
    .name = "adaptive-v",
    .aliases = {},
    .summary = "the best V schedule under a memory cap, searched with the real times",
    .bubble = "6p-1-3X at unit times; 3 at X = 2p-1, 0 at X = 2p; less with slices",
    .memory = "at most X, from (2*floor((p+4)/3) + 2(k-1))/k to (2p + 2(k-1))/k",
    .knobs = {.default_stages_per_device = 2, .slices = true, .memory_cap = true, .times = true},
    .generate = generate_adaptive_v,
};

}  // namespace sluice::generators
