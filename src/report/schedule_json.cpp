#include "sluice/report/json.h"
#include "sluice/report/schedule.h"
#include "sluice/report/timeline_json.h"

namespace sluice {
namespace {

void add_problems(JsonObject& object, const Validation& validation) {
  std::string& out = object.begin("problems");
  out += "[";
  for (std::size_t n = 0; n < validation.problems.size(); ++n) {
    const Problem& problem = validation.problems[n];
    out += n ? ",\n    " : "\n    ";
    append_json(out, {{"device", problem.device},
                      {"position", problem.position},
                      {"op", problem.op},
                      {"text", problem.text}});
  }
  out += "]";
}

void add_simulation(JsonObject& object, const PricedSchedule& priced) {
  const Simulation& sim = *priced.simulation;
  if (!priced.contention.empty()) object.add("contention", priced.contention);
  object.add("makespan", sim.makespan);
  object.add("span", sim.span);
  object.add("ideal", sim.ideal);
  object.add("bubble", sim.bubble);
  object.add("bubble_rate", sim.bubble_rate);
  object.add("bubble_fraction", sim.bubble_fraction);
  if (priced.schedule.has(OpKind::ReduceGrad))
    object.add("exposed_reduction", sim.exposed_reduction);
  Json peaks = Json::array(), bytes = Json::array();
  for (const DeviceResult& device : sim.devices) {
    peaks.push_back(device.peak_activations);
    bytes.push_back(device.peak_bytes);
  }
  object.add("peak_activations", peaks);
  object.add("max_peak", sim.max_peak);
  if (sim.max_peak_bytes > 0) {
    object.add("peak_bytes", bytes);
    object.add("max_peak_bytes", sim.max_peak_bytes);
  }
}

// How a schedule of several windows was made, who holds and owns its stages, and how old its
// weights are.
void add_asynchronous(JsonObject& object, const PricedSchedule& priced) {
  const Schedule& s = priced.schedule;
  object.add("weights", name_of(s.weights));
  if (const auto& asynchronous = priced.asynchronous) {
    const AsynchronousOptions& a = *asynchronous;
    const auto number_or_null = [](int value) { return value > 0 ? Json(value) : Json(); };
    if (a.order != AmdpOrder::automatic) object.add("order", name_of(a.order));
    object.add("backward", a.fused ? "fused" : "split");
    object.add("border", number_or_null(a.border));
    object.add("update_slot", number_or_null(a.update_slot));
  }
  Json placement = Json::array(), owners = Json::array();
  for (int pipe = 0; pipe < s.num_pipes(); ++pipe) {
    Json devices = Json::array();
    for (int stage = 0; stage < s.num_stages(); ++stage)
      devices.push_back(s.placement.device_of(pipe, stage));
    placement.push_back(devices);
  }
  for (int stage = 0; stage < s.num_stages(); ++stage)
    owners.push_back(s.owner_of(stage));
  object.add("placement_by_pipe", placement);
  object.add("owners", owners);
  if (const auto& sim = priced.simulation) {
    double busy = 0;
    for (const DeviceResult& device : sim->devices)
      busy += device.busy;
    const double all = sim->makespan * static_cast<double>(sim->devices.size());
    object.add("utilisation", all > 0 ? Json(busy / all) : Json());
    object.add("steady_utilisation", priced.steady ? Json(priced.steady->utilisation()) : Json());
  }
  if (const auto& advice = priced.advice) {
    object.add("round_trip", advice->round_trip);
    object.add("advised_pipes", advice->pipes);
  }
  if (const auto& staleness = priced.staleness) {
    object.add("weight_copies", staleness->weight_copies);
    object.add("accumulators", staleness->accumulators);
    // Of a steady window.
    const auto steady = [&](const auto& value) {
      return staleness->steady() ? Json(value) : Json();
    };
    object.add("max_mismatch", steady(staleness->max_mismatch()));
    object.add("mismatch_share", steady(staleness->mismatch_share()));
    object.add("mismatched_microbatches", steady(staleness->mismatched_microbatches));
    object.add("max_delay", steady(staleness->max_delay));
  }
}

}  // namespace

std::string schedule_json(const PricedSchedule& priced, bool timeline) {
  const Schedule& s = priced.schedule;
  JsonObject object;
  object.add("schema", 1);
  object.add("name", s.name);
  object.add("devices", s.programs.size());
  object.add("stages", s.num_stages());
  object.add("stages_per_device", s.placement.stages_per_device());
  object.add("microbatches", s.num_microbatches);
  if (s.num_windows > 1 || priced.asynchronous) {
    object.add("windows", s.num_windows);
    object.add("window", s.window_size());
  }
  object.add("slices", s.num_slices);
  if (!s.slice_sizes.empty()) object.add("slice_sizes", s.slice_sizes);
  object.add("pipes", s.num_pipes());
  object.add("ops", s.num_compute_ops());
  object.add("valid", priced.validation.valid());
  add_problems(object, priced.validation);
  if (!priced.model.empty()) {
    object.add("model", priced.model);
    object.add("times", Json::array({priced.times.f, priced.times.i, priced.times.w}));
  }
  if (priced.simulation) add_simulation(object, priced);
  if (const auto& block = priced.block)
    object.add(
        "block",
        {{"period", block->period}, {"lifespans", block->lifespans}, {"peak_bound", block->peak}});
  if (s.num_windows > 1 || priced.asynchronous) add_asynchronous(object, priced);
  object.add("receive_buffers", priced.validation.receive_buffers);
  Json placement = Json::array();
  for (int d = 0; d < s.num_devices(); ++d)
    placement.push_back(s.placement.stages_of(d));
  object.add("placement", placement);
  append_rows(object.begin("programs"), s.programs.size(), [&](std::string& out, std::size_t d) {
    out += '"' + s.program_text(static_cast<int>(d)) + '"';
  });
  if (timeline && priced.simulation) add_timeline(object, priced.simulation->timeline);
  return object.take();
}

}  // namespace sluice
