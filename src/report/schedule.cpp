#include "sluice/report/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/torch_lowering.h"

namespace sluice {
namespace {

// A timeline holds every op and message; beyond this it is gigabytes.
constexpr std::size_t kMaxDrawnOps = 5'000'000;

// Of all devices over the makespan: what the eye sees of a picture.
double idle_share(const Simulation& sim) {
  double busy = 0;
  for (const DeviceResult& device : sim.devices)
    busy += device.busy;
  const double all = sim.makespan * static_cast<double>(sim.devices.size());
  return all > 0 ? std::max(0.0, 1 - busy / all) : 0;
}

std::string block_line(const BlockBound& bound) {
  constexpr std::size_t kMostChunks = 4;
  const std::vector<int>& spans = bound.lifespans[static_cast<std::size_t>(bound.device)];
  std::vector<int> shown(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(
                                                            std::min(spans.size(), kMostChunks)));
  return fmt::format(
      "building block of period {}: at most {} stage-activations, from {} of {}{} slots on device "
      "{}\n",
      bound.period, number(bound.peak), spans.size() > 1 ? "lifespans" : "a lifespan",
      fmt::join(shown, " + "), shown.size() < spans.size() ? " + ..." : "", bound.device);
}

// Mean times of a stage: a microbatch comes back to the first device when every stage has run its
// forward and backward and every message has gone both ways.
PipeAdvice pipe_advice(const Schedule& schedule, const Costs& costs, int in_flight) {
  const int stages = schedule.num_stages();
  const bool split = schedule.has(OpKind::I);
  double each = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const OpCosts& op = costs.of(0, stage, 0);
    each += (op.f + (split ? op.i + op.w : op.b)) / stages;
  }
  PipeAdvice advice{.in_flight = in_flight};
  advice.round_trip = stages * each + 2 * (stages - 1) * costs.default_link.latency;
  if (each > 0)
    advice.pipes =
        static_cast<int>(std::ceil(advice.round_trip / (in_flight * each) * (1 - 1e-12)));
  return advice;
}

// How many pipes it takes, below the grid.
std::string advice_line(const PricedSchedule& priced) {
  const auto& advice = priced.advice;
  if (!advice) return "";
  return fmt::format(
      "\na microbatch's round trip takes {:.6g}{}: {} with {} in flight can keep the devices at "
      "work\n",
      advice->round_trip, priced.seconds ? " s" : "", counted(advice->pipes, "pipe"),
      advice->in_flight);
}

}  // namespace

PricedSchedule price_schedule(PriceRequest request) {
  PricedSchedule priced;
  priced.schedule = std::move(request.schedule);
  ValidateOptions options{.max_buffers = request.buffers};
  if (const auto& asynchronous = request.asynchronous)
    options.staleness = {asynchronous->max_mismatch.value_or(-1),
                         asynchronous->max_delay.value_or(-1)};
  priced.validation = validate(priced.schedule, options);
  priced.asynchronous = std::move(request.asynchronous);
  if (!priced.validation.valid()) return priced;
  if (priced.schedule.num_windows > 1 || priced.asynchronous)
    priced.staleness = staleness_of(priced.schedule);
  const std::size_t ops = priced.schedule.num_compute_ops();
  if (request.timeline && ops > kMaxDrawnOps)
    throw user_error(
        "{} ops are too many to draw or list: at most {}; use `format` csv, `format` json "
        "without `timeline`, or compare",
        with_commas(std::to_string(ops)), with_commas(std::to_string(kMaxDrawnOps)));
  priced.seconds = !request.pricing.costs_file.empty();
  const Costs costs = request.pricing.costs(priced.schedule, request.tokens);
  if (priced.seconds) priced.notes.push_back(measured_on_note(request.pricing.costs_file, costs));
  if (request.pricing.redeal)
    priced.notes.push_back(fmt::format("layers of the stages: {}", fmt::join(costs.layers, ", ")));
  priced.contention = costs.contention;
  if (request.pricing.model) priced.model = request.pricing.model->name;
  priced.times = request.pricing.times;
  const SimulateOptions simulated{.timeline = request.timeline,
                                  .keep_after_i = request.pricing.keep_after_i};
  priced.simulation = simulate(priced.schedule, costs, simulated);
  if (priced.asynchronous && priced.asynchronous->order != AmdpOrder::automatic)
    priced.advice =
        pipe_advice(priced.schedule, costs, std::max(2, priced.asynchronous->in_flight));
  priced.steady = steady_window(priced.schedule, costs, simulated, *priced.simulation);
  priced.simulation->timeline.caption = schedule_caption(priced);
  return priced;
}

std::string schedule_caption(const PricedSchedule& priced) {
  const Schedule& s = priced.schedule;
  std::string out =
      fmt::format("{}, {}, {}", counted(s.num_devices(), "device"),
                  counted(s.num_stages(), "stage"), counted(s.num_microbatches, "microbatch"));
  if (s.num_windows > 1) out += fmt::format(" in {} windows", s.num_windows);
  if (s.num_slices > 1) out += fmt::format(" of {} slices", s.num_slices);
  if (!s.slice_sizes.empty()) out += fmt::format(" ({})", slice_sizes_text(s.slice_sizes));
  if (s.num_pipes() > 1) out += fmt::format(", {} pipes", s.num_pipes());
  if (!priced.model.empty())
    out += fmt::format(", {} with F,I,W = {:.4g},{:.4g},{:.4g}", printable(priced.model),
                       priced.times.f, priced.times.i, priced.times.w);
  const auto add_staleness = [&] {
    if (const auto& staleness = priced.staleness)
      out += fmt::format("; mismatch at most {} ({:.1f}% of a window's), delay at most {}",
                         staleness->max_mismatch(), 100 * staleness->mismatch_share(),
                         staleness->max_delay);
    if (priced.staleness && !priced.staleness->steady() && s.num_windows > 1)
      out += " in the last window, and none is steady yet";
  };
  if (!priced.simulation) {
    add_staleness();
    return out;
  }
  const Simulation& sim = *priced.simulation;
  const std::string_view unit = priced.seconds ? " s" : "";
  out += fmt::format(
      "; makespan {:.6g}{} ({:.1f}% idle), span {:.6g}{}, bubble {:.6g}{} ({:.1f}% of the span), "
      "peak {:.6g} stage-activations",
      sim.makespan, unit, 100 * idle_share(sim), sim.span, unit, sim.bubble, unit,
      100 * sim.bubble_rate, sim.max_peak);
  if (sim.max_peak_bytes > 0) out += fmt::format(" ({:.4g} GiB)", sim.max_peak_bytes / (1 << 30));
  if (!priced.contention.empty()) out += ", with contention";
  if (priced.steady)
    out += fmt::format("; a steady window takes {:.6g}{} (busiest device at work {:.1f}%)",
                       priced.steady->added, unit, 100 * priced.steady->utilisation());
  add_staleness();
  if (sim.exposed_reduction > 0)
    out += fmt::format("; {:.6g}{} of the makespan only reduces gradients", sim.exposed_reduction,
                       unit);
  return out;
}

bool draws(Format format) {
  return format == Format::grid || format == Format::svg || format == Format::html ||
         format == Format::chrome;
}

std::string render_schedule(const PricedSchedule& priced, Format format,
                            const RenderOptions& options) {
  switch (format) {
    case Format::json: return schedule_json(priced, options.timeline);
    case Format::csv: return write_schedule(priced.schedule, TextFlavour::native);
    case Format::torch_csv:
      // PyTorch executes a schedule with communication as it is written, so all it needs is there.
      return write_schedule(
          priced.schedule.has_communication() ? lower_for_torch(priced.schedule) : priced.schedule,
          TextFlavour::torch);
    case Format::text:
    case Format::grid:
    case Format::svg:
    case Format::html:
    case Format::chrome: break;
  }
  SLUICE_CHECK(priced.simulation, "{} is drawn without a timeline", priced.schedule.name);
  const Timeline& drawn = priced.simulation->timeline;
  if (format == Format::svg) return render_svg(drawn);
  if (format == Format::html) return render_html(drawn);
  if (format == Format::chrome) return render_chrome(drawn);
  const std::string grid = render_grid(drawn, options.grid) + advice_line(priced);
  return priced.describe_block ? grid + block_line(*priced.block) : grid;
}

}  // namespace sluice
