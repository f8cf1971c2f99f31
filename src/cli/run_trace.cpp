#include "sluice/cli/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "sluice/base/error.h"
#include "sluice/cli/output.h"
#include "sluice/runtime/files/file_system.h"
#include "sluice/runtime/preflight.h"
#include "sluice/trace/render.h"

namespace sluice::cli {

std::string StepComparison::line() const {
  return fmt::format("last step: {:.4g} s measured, {:.4g} s predicted (ratio {:.3f})",
                     measured.makespan, predicted.makespan, measured.makespan / predicted.makespan);
}

namespace {

// Of unequal microbatches, what their ops took in this very step: no other has the same ones.
Costs with_own_times(const Costs& costs, const std::vector<DeviceTimeline>& measured) {
  std::vector<OpCosts> table;
  for (int microbatch = 0; microbatch < costs.num_microbatches(); ++microbatch)
    for (int stage = 0; stage < costs.num_stages(); ++stage)
      table.push_back(costs.of(microbatch, stage, 0));
  for (const DeviceTimeline& device : measured)
    for (const Span& span : device.spans) {
      OpCosts& own =
          table[static_cast<std::size_t>(span.op.microbatch * costs.num_stages() + span.op.stage)];
      double OpCosts::*const time = span.op.kind == OpKind::F   ? &OpCosts::f
                                    : span.op.kind == OpKind::I ? &OpCosts::i
                                    : span.op.kind == OpKind::W ? &OpCosts::w
                                                                : &OpCosts::b;
      own.*time = span.end - span.start;
    }
  Costs out = costs;
  out.set_microbatches(std::move(table));
  return out;
}

}  // namespace

StepComparison compare_step(const Schedule& schedule, std::vector<DeviceTimeline> measured,
                            const Costs& costs) {
  StepComparison step;
  step.predicted =
      simulate(schedule, costs.num_microbatches() > 0 ? with_own_times(costs, measured) : costs,
               {.timeline = true})
          .timeline;
  for (const DeviceTimeline& device : measured)
    if (!device.spans.empty())
      step.measured.makespan = std::max(step.measured.makespan, device.spans.back().end);
  step.measured.devices = std::move(measured);
  return step;
}

void check_trace(const std::string& path) {
  if (!path.ends_with(".json") && !path.ends_with(".svg") && !path.ends_with(".html"))
    throw user_error("--trace is {}: needs a file that ends in .json, .svg or .html", path);
  const std::string folder = parent_folder(path);
  if (!is_there(folder)) throw file_error("write to", folder, ENOENT);
  check_writable(folder);
}

void write_trace(const std::string& path, const StepComparison& step) {
  Timeline both = step.predicted;
  both.devices.clear();
  both.messages.clear();
  both.name += ": measured and predicted";
  both.caption =
      step.line() + "; the prediction takes the run's op times, and no time for messages";
  add_run(both, "measured", step.measured);
  add_run(both, "predicted", step.predicted);
  OutputFlags output;
  output.out = path;
  try {
    output.write(path.ends_with(".svg")    ? render_svg(both)
                 : path.ends_with(".html") ? render_html(both)
                                           : render_chrome(both));
  } catch (const UserError& error) {
    // The ending is the format here.
    const auto spelling = [](std::string_view field) -> std::string {
      return field == "format" ? "--trace" : "";
    };
    throw UserError(spell_fields(error.what(), spelling), error.code());
  }
}

}  // namespace sluice::cli
