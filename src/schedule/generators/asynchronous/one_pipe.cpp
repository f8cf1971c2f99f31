// Asynchronous schedules of one pipe, in the order of 1F1B, that go on from window to window:
// async-1f1b adds the gradients of a window up (PACI), pipedream-2bw keeps the weights of the
// window before (PipeDream-2BW), xpipe predicts those to come (XPipe), pipedream updates each stage
// as soon as its own gradients are there. async-1f1b on two devices, windows of two microbatches:
//
//   device 0  0F0 0F1 0B0 0F2 0B1 0REDUCE_GRAD0 0UPDATE0 0F3 0B2 ...
//   device 1  1F0 1B0 1F1 1B1 1REDUCE_GRAD0 1F2 1UPDATE0 1B2 ...
#include <optional>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/asynchronous/slot_order.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/transforms/split_backward.h"

namespace sluice::generators {
namespace {

GeneratorOptions settle_with(const GeneratorOptions& o, WeightVersions weights) {
  GeneratorOptions settled = o;
  AsynchronousOptions& a = settled.asynchronous;
  if (!a.weights) a.weights = weights;
  if (!a.max_mismatch) a.max_mismatch = -1;
  if (!a.max_delay) a.max_delay = -1;
  return settled;
}

GeneratorOptions settle_newest(const GeneratorOptions& o) {
  return settle_with(o, WeightVersions::newest);
}
GeneratorOptions settle_stash(const GeneratorOptions& o) {
  return settle_with(o, WeightVersions::stash);
}
GeneratorOptions settle_predicted(const GeneratorOptions& o) {
  return settle_with(o, WeightVersions::predicted);
}
GeneratorOptions settle_previous(const GeneratorOptions& o) {
  return settle_with(o, WeightVersions::previous);
}

Schedule one_pipe(const GeneratorOptions& o) {
  return schedule_from_slots(order_one_pipe(o.devices),
                             {o.windows, o.microbatches, !o.asynchronous.fused});
}

Schedule generate_async(const GeneratorOptions& o) {
  Schedule schedule = one_pipe(o);
  schedule.name = "async-1f1b";
  schedule.weights = *settle_newest(o).asynchronous.weights;
  return schedule;
}

// Else more than two versions of the weights are in use.
void check_window(const GeneratorOptions& o, std::string_view name, std::string_view what) {
  if (o.microbatches < o.devices)
    throw user_error(
        "`microbatches` is {}: {} on {} devices needs at least {} for each window, or {}; "
        "async-1f1b takes fewer",
        o.microbatches, name, o.devices, o.devices, what);
}

Schedule generate_xpipe(const GeneratorOptions& o) {
  check_window(o, "xpipe", "weights would be predicted over more than one update");
  Schedule schedule = one_pipe(o);
  schedule.name = "xpipe";
  schedule.weights = WeightVersions::predicted;
  return schedule;
}

Schedule generate_2bw(const GeneratorOptions& o) {
  check_window(o, "pipedream-2bw", "two versions of the weights are not enough");
  Schedule schedule = one_pipe(o);
  schedule.name = "pipedream-2bw";
  schedule.weights = WeightVersions::previous;
  return schedule;
}

// Each update moves up to directly behind its own stage's reduction.
Schedule generate_pipedream(const GeneratorOptions& o) {
  Schedule schedule = one_pipe(o);
  schedule.name = "pipedream";
  schedule.weights = *settle_stash(o).asynchronous.weights;
  schedule.updates_by_stage = true;
  for (int device = 0; device < schedule.num_devices(); ++device) {
    Program& program = schedule.programs[static_cast<std::size_t>(device)];
    Program with;
    for (const Op& op : program) {
      if (op.kind == OpKind::Update) continue;
      with.push_back(op);
      if (op.kind == OpKind::ReduceGrad)
        with.push_back(
            schedule.window_op(OpKind::Update, device, op.stage, schedule.window_of(op)));
    }
    program = std::move(with);
  }
  return schedule;
}

}  // namespace

extern const Generator async_1f1b;
const Generator async_1f1b = {"async-1f1b",
                              {},
                              "1F1B that goes on, one update per window (PACI)",
                              "0",
                              "p-r",
                              {.windows = true, .weights = true},
                              generate_async,
                              nullptr,
                              settle_newest};

extern const Generator pipedream;
const Generator pipedream = {"pipedream",
                             {},
                             "1F1B that goes on, each stage updates by itself (PipeDream)",
                             "0",
                             "p-r",
                             {.windows = true, .weights = true},
                             generate_pipedream,
                             nullptr,
                             settle_stash};

extern const Generator pipedream_2bw;
const Generator pipedream_2bw = {"pipedream-2bw",
                                 {},
                                 "1F1B that goes on, on the weights of the window before",
                                 "0",
                                 "p-r",
                                 {.windows = true},
                                 generate_2bw,
                                 nullptr,
                                 settle_previous};

extern const Generator xpipe;
const Generator xpipe = {"xpipe",
                         {},
                         "1F1B that goes on, forwards on predicted weights (XPipe)",
                         "0",
                         "p-r",
                         {.windows = true},
                         generate_xpipe,
                         nullptr,
                         settle_predicted};

}  // namespace sluice::generators
