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
