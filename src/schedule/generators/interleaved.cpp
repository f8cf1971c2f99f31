// Interleaved 1F1B and its zero-bubble form: v stages per device, microbatches in groups of N that
// visit stage after stage before the next group starts. p = 2, v = 2, N = 2:
//
//   device 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ...
//   device 1  .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 ...
#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice::generators {
namespace {

// The remainder group must be empty or long enough that its first microbatch is back from the last
// device before the group ends.
bool legal_group(int group, int p, int m) {
  return group >= p && group <= m && (m % group == 0 || m % group >= p);
}

int group_size(const GeneratorOptions& o, std::string_view name) {
  const int p = o.devices, m = o.microbatches;
  int fallback = p;
  while (fallback < m && !legal_group(fallback, p, m))
    ++fallback;
  fallback = std::min(fallback, m);
  if (o.group_size == 0 || o.group_size == fallback) return fallback;
  if (!legal_group(o.group_size, p, m))
    throw user_error(
        "`group_size` is {}: {} needs p <= N <= m with m mod N zero or at least p (p = {}, m = "
        "{}); "
        "{} works, or leave the `field` out",
        o.group_size, name, p, m, fallback);
  return o.group_size;
}

struct Order {
  std::string_view name;
  int hops;    // extra warm-up forwards per device that follows
  bool split;  // I and W instead of B
};

Schedule interleave(const GeneratorOptions& o, const Order& order) {
  const int p = o.devices, m = o.microbatches, v = o.stages_per_device;
  const int group = group_size(o, order.name);
  Schedule schedule;
  schedule.name = order.name;
  schedule.placement = Placement::looped(p, v);
  schedule.num_microbatches = m;

  // The order in which a device meets (microbatch, chunk); backwards meet the chunks in reverse.
  std::vector<std::pair<int, int>> table;
  for (int first = 0; first < m; first += group)
    for (int chunk = 0; chunk < v; ++chunk)
      for (int mb = first; mb < std::min(first + group, m); ++mb)
        table.emplace_back(mb, chunk);

  const int total = m * v;
  for (int r = 0; r < p; ++r) {
    Program& program = schedule.programs.emplace_back();
    const auto emit = [&](OpKind kind, int n) {
      const auto [mb, chunk] = table[static_cast<std::size_t>(n)];
      const int local = kind == OpKind::F ? chunk : v - 1 - chunk;
      program.push_back(make_op(kind, local * p + r, mb));
    };
    int weights = 0;
    const auto backward = [&](int n) {
      emit(order.split ? OpKind::I : OpKind::B, n);
      if (order.split && n >= r) emit(OpKind::W, weights++);
    };
    const int warm_up = std::min((v - 1) * group + order.hops * (p - 1 - r), total);
    for (int n = 0; n < warm_up; ++n)
      emit(OpKind::F, n);
    for (int n = 0; n < total - warm_up; ++n) {
      emit(OpKind::F, warm_up + n);
      backward(n);
    }
    for (int n = total - warm_up; n < total; ++n)
      backward(n);
    while (order.split && weights < total)
      emit(OpKind::W, weights++);
  }
  return schedule;
}

Schedule generate_1f1b(const GeneratorOptions& o) {
  return interleave(o, {"interleaved-1f1b", 2, false});
}

Schedule generate_zb(const GeneratorOptions& o) {
  return interleave(o, {"interleaved-zb", 1, true});
}

constexpr Knobs kKnobs = {
    .default_stages_per_device = 2, .stages_per_device = true, .group_size = true};

}  // namespace

extern const Generator interleaved_1f1b;
const Generator interleaved_1f1b = {"interleaved-1f1b",
                                    {"Interleaved1F1B"},
                                    "1F1B with v stages per device, microbatches in groups of N",
                                    "(p-1)(F+B), times of one stage",
                                    "(v-1)N + 2(p-r-1) + 1",
                                    kKnobs,
                                    generate_1f1b};

extern const Generator interleaved_zb;
const Generator interleaved_zb = {"interleaved-zb",
                                  {"InterleavedZeroBubble"},
                                  "interleaved 1F1B with W delayed, in PyTorch's order",
                                  "(p-1)(F+I-W), times of one stage",
                                  "(v-1)N + p",
                                  kKnobs,
                                  generate_zb};

}  // namespace sluice::generators
