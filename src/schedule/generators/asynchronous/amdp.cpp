// AMDP: asynchronous pipelines in several directions. Every pipe has two microbatches in flight, so
// that no more than one update comes between a forward and its backward; with enough pipes over the
// same devices, none is ever idle. Order R on two devices, split, with windows of two microbatches:
//
//   device 0  0F0 0F1 0I0 0W0 0F2 0I1 0W1 0REDUCE_GRAD0 0UPDATE0 0F3 0I2 0W2 ...
//   device 1  1F0 1I0 1W0 1F1 1I1 1W1 1REDUCE_GRAD0 1F2 1UPDATE0 1I2 1W2 1F3 ...
#include <algorithm>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/asynchronous/first_in_first_out.h"
#include "sluice/schedule/generators/asynchronous/pace.h"

namespace sluice::generators {
namespace {

SlotOrder slots_of(AmdpOrder order, int devices) {
  switch (order) {
    case AmdpOrder::a: return order_a(devices);
    case AmdpOrder::t: return order_t(devices);
    case AmdpOrder::rounded_a: return order_rounded_a(devices);
    default: return order_r(devices);
  }
}

bool has_border(AmdpOrder order) { return order == AmdpOrder::a || order == AmdpOrder::rounded_a; }

// Why an order does not exist on so many devices, or "".
std::string order_problem(AmdpOrder order, int devices) {
  if (order == AmdpOrder::a && devices % 4 != 0)
    return fmt::format(
        "`devices` is {}: order A needs a multiple of 4; {}rounded-A and R take any "
        "number",
        devices, devices % 2 == 0 ? "T takes an even one, " : "");
  if (order == AmdpOrder::t && devices % 2 != 0)
    return fmt::format("`devices` is {}: order T needs an even number; R and rounded-A take any",
                       devices);
  return "";
}

void check_microbatches(AmdpOrder order, int devices, int microbatches, int block) {
  if (microbatches % block == 0) return;
  const int below = microbatches / block * block;
  throw user_error(
      "`microbatches` is {}: order {} on {} devices needs a multiple of {} for each "
      "window; use {}{}",
      microbatches, name_of(order), devices, block, below > 0 ? fmt::format("{} or ", below) : "",
      below + block);
}

void check_update_slot(AmdpOrder order, int devices, const SlotOrder& slots, int update_slot) {
  // Later, a backward of the new window would come before the update; earlier, one of the old
  // window behind it.
  const int latest = static_cast<int>(slots.update_slot);
  const int earliest = has_border(order) ? 3 : latest;
  if (update_slot >= earliest && update_slot <= latest) return;
  throw user_error(
      "`update_slot` is {}: order {} on {} devices loses no gradient with {}; leave the `field` "
      "out",
      update_slot, name_of(order), devices,
      earliest == latest ? fmt::format("{} alone", latest)
                         : fmt::format("{} to {}", earliest, latest));
}

Schedule generate_order(const GeneratorOptions& o) {
  const AsynchronousOptions& a = o.asynchronous;
  const Windows windows{o.windows, o.microbatches, !a.fused};
  if (a.order == AmdpOrder::frozen) return first_in_first_out(o, a.pipes, a.in_flight, windows);
  SlotOrder order = slots_of(a.order, o.devices);
  order.outer_first = a.border == 2;
  order.update_slot = a.update_slot;
  return schedule_from_slots(order, windows);
}

// What the user left out, of a given order. Throws UserError for what does not fit it.
GeneratorOptions settle_order(GeneratorOptions o) {
  AsynchronousOptions& a = o.asynchronous;
  if (const std::string problem = order_problem(a.order, o.devices); !problem.empty())
    throw UserError(problem);
  if (a.order == AmdpOrder::frozen) {
    if (a.pipes == 0) a.pipes = std::max(1, o.devices / 2);
    if (a.in_flight == 0) a.in_flight = 2;
    check_microbatches(a.order, o.devices, o.microbatches, a.pipes);
    return o;
  }
  const SlotOrder slots = slots_of(a.order, o.devices);
  check_microbatches(a.order, o.devices, o.microbatches, slots.block);
  if (a.update_slot == 0) a.update_slot = static_cast<int>(slots.update_slot);
  check_update_slot(a.order, o.devices, slots, a.update_slot);
  if (has_border(a.order) && a.border == 0) a.border = 1;
  return o;
}

// Why a knob does not belong to the order, or "".
std::string knob_problem(const AsynchronousOptions& a) {
  const std::string_view order = name_of(a.order);
  const bool frozen = a.order == AmdpOrder::frozen;
  if (a.pipes != 0 && !frozen)
    return fmt::format("`pipes` is {}: order {} has its own number; order frozen takes any",
                       a.pipes, order);
  if (a.in_flight != 0 && !frozen)
    return fmt::format("`in_flight` is {}: order {} has two; order frozen takes any", a.in_flight,
                       order);
  if (a.border != 0 && !has_border(a.order))
    return fmt::format("`border` is {}: order {} has no border of blocks; A and rounded-A have",
                       a.border, order);
  if (a.update_slot != 0 && (frozen || a.order == AmdpOrder::automatic))
    return fmt::format("`update_slot` is {}: order {} has none; give A, R, T or rounded-A",
                       a.update_slot, order);
  return "";
}

struct Candidate {
  GeneratorOptions options;
  double makespan = 0;  // of one window more, where there are several
  int weight_copies = 0;
  double stash = 0;
};

// Faster; of equals, with fewer copies of the weights, then with a smaller stash.
bool is_better(const Candidate& a, const Candidate& b) {
  const double margin = 1e-9 * b.makespan;
  if (a.makespan < b.makespan - margin) return true;
  if (a.makespan > b.makespan + margin) return false;
  if (a.weight_copies != b.weight_copies) return a.weight_copies < b.weight_copies;
  return a.stash < b.stash;
}

Candidate tried(const GeneratorOptions& options) {
  Candidate candidate{options};
  GeneratorOptions few = options;
  few.windows = std::min(options.windows, 3);
  const Schedule schedule = generate_order(few);
  candidate.makespan = makespan_of(schedule, few);
  if (--few.windows > 0) candidate.makespan -= makespan_of(generate_order(few), few);
  for (int device = 0; device < options.devices; ++device)
    candidate.weight_copies = std::max(candidate.weight_copies,
                                       static_cast<int>(schedule.placement.held_by(device).size()));
  for (const double stash : stash_of(schedule, options.keep_after_i))
    candidate.stash = std::max(candidate.stash, stash);
  return candidate;
}

GeneratorOptions fastest(const GeneratorOptions& o) {
  std::vector<Candidate> candidates;
  int least_block = 0;
  for (const AmdpOrder order : {AmdpOrder::t, AmdpOrder::r, AmdpOrder::a, AmdpOrder::rounded_a}) {
    if (!order_problem(order, o.devices).empty()) continue;
    if (order == AmdpOrder::rounded_a && o.devices % 4 == 0) continue;  // is A
    const int block = slots_of(order, o.devices).block;
    if (least_block == 0 || block < least_block) least_block = block;
    if (o.microbatches % block != 0) continue;
    GeneratorOptions of_order = o;
    of_order.asynchronous.order = order;
    for (const int border : {1, 2}) {
      if (border == 2 && !has_border(order)) continue;
      of_order.asynchronous.border = has_border(order) ? border : 0;
      candidates.push_back(tried(settle_order(of_order)));
    }
  }
  if (candidates.empty()) check_microbatches(AmdpOrder::r, o.devices, o.microbatches, least_block);
  Candidate best = candidates.front();
  for (const Candidate& candidate : candidates)
    if (is_better(candidate, best)) best = candidate;
  return best.options;
}

GeneratorOptions settle(const GeneratorOptions& o) {
  if (o.devices < 2)
    throw user_error("`devices` is {}: amdp needs at least 2; on one device nothing waits",
                     o.devices);
  if (const std::string problem = knob_problem(o.asynchronous); !problem.empty())
    throw UserError(problem);
  GeneratorOptions settled =
      o.asynchronous.order == AmdpOrder::automatic ? fastest(o) : settle_order(o);
  AsynchronousOptions& a = settled.asynchronous;
  if (!a.weights) a.weights = WeightVersions::newest;
  if (!a.max_mismatch) a.max_mismatch = 1;
  if (!a.max_delay) a.max_delay = 1;
  return settled;
}

Schedule generate(const GeneratorOptions& options) {
  const GeneratorOptions settled = settle(options);
  Schedule schedule = generate_order(settled);
  schedule.name = "amdp";
  schedule.weights = *settled.asynchronous.weights;
  return schedule;
}

}  // namespace

extern const Generator amdp;
const Generator amdp = {"amdp",
                        {},
                        "asynchronous pipes in several directions, one update per window",
                        "0 where I, W are split and I = F",
                        "p/2+1 (R), p (A, T)",
                        {.times = true, .windows = true, .weights = true, .orders = true},
                        generate,
                        nullptr,
                        settle};

}  // namespace sluice::generators
