#include "sim/simulate.h"

#include <algorithm>

#include "base/error.h"
#include "sim/memory_replay.h"

namespace sluice {
namespace {

constexpr double kNotYet = -1;

// Where one (pipe, stage)'s output, or its input gradient, goes.
struct Route {
  int to = -1;  // device; -1: nowhere, or the same device
  double latency = 0;
  double bytes_per_time = 0;
  std::size_t channel = 0;
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs, const SimulateOptions& options)
      : schedule_(schedule),
        costs_(costs),
        options_(options),
        explicit_sends_(schedule.has_communication()),
        arrival_(2 * schedule.num_cells(), kNotYet),
        activations_(schedule, activation_costs(schedule, options.keep_after_i)),
        bytes_(schedule, costs) {
    SLUICE_CHECK(
        costs.num_stages() == schedule.num_stages() && costs.num_slices() == schedule.num_slices,
        "costs of {} stages and {} slices for {} and {}", costs.num_stages(), costs.num_slices(),
        schedule.num_stages(), schedule.num_slices);
    make_routes();
    if (options.timeline) message_of_.assign(arrival_.size(), -1);
  }

  Simulation run() {
    const std::size_t n = schedule_.programs.size();
    result_.devices.resize(n);
    state_.resize(n);
    if (options_.timeline) result_.timeline.devices.resize(n);
    for (std::size_t d = n; d-- > 0;)
      runnable_.push_back(d);
    while (!runnable_.empty()) {
      const std::size_t d = runnable_.back();
      runnable_.pop_back();
      advance(d);
    }
    for (std::size_t d = 0; d < n; ++d)
      SLUICE_CHECK(state_[d].next == schedule_.programs[d].size(),
                   "device {} stopped at op {} of {}: the schedule was not validated", d,
                   state_[d].next, schedule_.programs[d].size());
    return finish();
  }

 private:
  struct Device {
    std::size_t next = 0;
    double clock = 0;
    std::size_t waiting_for = SIZE_MAX;  // index into arrival_
    double data_link_free = 0;
    double last_reduced = 0;
    bool started = false;
  };

  // Activations are counted in units of 1/k of a microbatch where slices are equal, so that sums of
  // slices stay exact.
  static Costs activation_costs(const Schedule& schedule, double keep_after_i) {
    std::vector<OpCosts> table;
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      for (int slice = 0; slice < schedule.num_slices; ++slice) {
        OpCosts costs;
        costs.after_f =
            schedule.slice_sizes.empty() ? 1 : schedule.slice_share(slice) * schedule.num_slices;
        costs.after_i = costs.after_f * keep_after_i;
        table.push_back(costs);
      }
    return Costs(schedule.num_stages(), schedule.num_slices, std::move(table));
  }

  static std::size_t direction(OpKind kind) {
    return kind == OpKind::F || kind == OpKind::SendF ? 0 : 1;
  }
  std::size_t slot(const Op& op) const { return 2 * schedule_.cell(op) + direction(op.kind); }
  std::size_t route_index(const Op& op) const {
    return 2 * (static_cast<std::size_t>(op.pipe) *
                    static_cast<std::size_t>(schedule_.num_stages()) +
                static_cast<std::size_t>(op.stage)) +
           direction(op.kind);
  }

  void make_routes() {
    const Placement& placement = schedule_.placement;
    const int num_stages = schedule_.num_stages();
    std::map<std::pair<int, int>, std::size_t> channels;
    for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
      for (int stage = 0; stage < num_stages; ++stage)
        for (const int neighbour : {stage + 1, stage - 1}) {
          Route& route = routes_.emplace_back();
          const int from = placement.device_of(pipe, stage);
          if (neighbour < 0 || neighbour >= num_stages) continue;
          const int to = placement.device_of(pipe, neighbour);
          if (from == to) continue;
          const Link link = costs_.link(from, to);
          const auto channel = channels.try_emplace({from, to}, channels.size()).first->second;
          route = {to, link.latency, link.bytes_per_time, channel};
        }
    channel_free_.assign(channels.size(), 0);
  }

  // Lets one device run until it must wait.
  void advance(std::size_t d) {
    const Program& program = schedule_.programs[d];
    Device& device = state_[d];
    while (device.next < program.size()) {
      const std::size_t end = group_end(program, device.next);
      // A group starts when the inputs of all its members are there.
      double start = device.clock;
      int message = -1;
      for (std::size_t i = device.next; i < end; ++i)
        if (is_compute(program[i].kind) && !wait_for_inputs(d, program[i], start, message)) return;
      if (end == device.next + 1)
        run_op(d, program[device.next], start, costs_.duration(program[device.next]), message);
      else
        run_group(d, device.next, end, start, message);
      // What a group makes leaves when the whole of it is done, as in the lowered form.
      if (!explicit_sends_)
        for (std::size_t i = device.next; i < end; ++i)
          if (is_compute(program[i].kind)) send(d, program[i], device.clock);
      device.next = end;
    }
  }

  // Raises `start` to the arrival of the op's inputs; false (and a note to be woken) if one is not
  // there yet. Inputs made on this device come earlier in its program.
  bool wait_for_inputs(std::size_t d, const Op& op, double& start, int& message) {
    for (const Op& input : inputs_of(op, schedule_)) {
      if (routes_[route_index(input)].to != static_cast<int>(d)) continue;  // made here
      const std::size_t at = slot(input);
      if (arrival_[at] == kNotYet) {
        state_[d].waiting_for = at;
        return false;
      }
      if (arrival_[at] > start) {
        start = arrival_[at];
        if (options_.timeline) message = message_of_[at];
      }
    }
    return true;
  }

  void run_op(std::size_t d, const Op& op, double start, double duration, int message) {
    Device& device = state_[d];
    if (is_compute(op.kind)) {
      const double end = start + duration;
      record(d, op, start, end, message);
      device.clock = end;
    } else if (is_send(op.kind)) {
      send(d, op, device.clock);
    } else if (op.kind == OpKind::ReduceGrad) {
      reduce(d, op);
    }
  }

  void reduce(std::size_t d, const Op& op) {
    Device& device = state_[d];
    const double bytes = costs_.reduce_bytes(op.stage);
    if (bytes == 0) return;
    const double start = std::max(device.clock, device.data_link_free);
    const Link& link = costs_.data_link;
    device.data_link_free = start + (link.bytes_per_time > 0 ? bytes / link.bytes_per_time : 0);
    device.last_reduced = device.data_link_free + link.latency;
    if (!options_.timeline || device.last_reduced == start) return;
    DeviceTimeline& line = result_.timeline.devices[d];
    line.reductions.push_back(
        {op, static_cast<int>(line.spans.size()) - 1, start, device.last_reduced});
  }

  void run_group(std::size_t d, std::size_t first, std::size_t end, double start, int message) {
    const Program& program = schedule_.programs[d];
    double sum = 0, longest = 0;
    for (std::size_t i = first; i < end; ++i) {
      sum += costs_.duration(program[i]);
      longest = std::max(longest, costs_.duration(program[i]));
    }
    if (costs_.overlap == 0) {
      for (std::size_t i = first; i < end; ++i) {
        run_op(d, program[i], std::max(start, state_[d].clock), costs_.duration(program[i]),
               i == first ? message : -1);
      }
      return;
    }
    // Members run side by side over the whole of the group's time.
    const double together = longest + (1 - costs_.overlap) * (sum - longest);
    for (std::size_t i = first; i < end; ++i)
      run_op(d, program[i], start, together, message);
    result_.devices[d].busy -= static_cast<double>(end - first - 1) * together;
  }

  void record(std::size_t d, const Op& op, double start, double end, int message) {
    DeviceResult& device = result_.devices[d];
    if (!state_[d].started) {
      state_[d].started = true;
      device.first_start = start;
    }
    device.busy += end - start;
    device.last_end = std::max(device.last_end, end);
    const MemoryStep step = activations_.apply(d, op);
    MemoryStep byte_step;
    if (costs_.measured) byte_step = bytes_.apply(d, op);
    if (!options_.timeline) return;
    DeviceTimeline& line = result_.timeline.devices[d];
    line.spans.push_back({op, start, end, message});
    const MemoryStep& shown = costs_.measured ? byte_step : step;
    const double scale = costs_.measured ? 1 : 1.0 / schedule_.num_slices;
    if (shown.at_start != shown.before) line.memory.push_back({start, shown.at_start * scale});
    if (shown.at_end != shown.at_start) line.memory.push_back({end, shown.at_end * scale});
  }

  // A tensor leaves `d` at `time`, if the op has a consumer elsewhere.
  void send(std::size_t d, const Op& op, double time) {
    if (op.kind == OpKind::W) return;
    const Route& route = routes_[route_index(op)];
    if (route.to < 0) return;
    double start = time, occupied = 0;
    if (route.bytes_per_time > 0) {
      const OpCosts& costs = costs_.at(op.stage, op.slice);
      occupied = (direction(op.kind) == 0 ? costs.sent_forward : costs.sent_backward) /
                 route.bytes_per_time;
      start = std::max(time, channel_free_[route.channel]);
      channel_free_[route.channel] = start + occupied;
    }
    const std::size_t at = slot(op);
    arrival_[at] = start + occupied + route.latency;
    if (options_.timeline) {
      message_of_[at] = static_cast<int>(result_.timeline.messages.size());
      Op carrier = op;
      carrier.joined = 0;
      carrier.kind = direction(op.kind) == 0 ? OpKind::SendF : OpKind::SendB;
      result_.timeline.messages.push_back(
          {carrier, static_cast<int>(d), route.to, producer_span(d, op), start, arrival_[at]});
    }
    Device& consumer = state_[static_cast<std::size_t>(route.to)];
    if (consumer.waiting_for == at) {
      consumer.waiting_for = SIZE_MAX;
      runnable_.push_back(static_cast<std::size_t>(route.to));
    }
  }

  // The span that made what `op` sends: the last one of its kind for this cell, usually the latest.
  int producer_span(std::size_t d, const Op& op) const {
    const std::vector<Span>& spans = result_.timeline.devices[d].spans;
    for (std::size_t i = spans.size(); i-- > 0;) {
      const Op& made = spans[i].op;
      if (made.stage == op.stage && made.microbatch == op.microbatch && made.slice == op.slice &&
          made.kind != OpKind::W && direction(made.kind) == direction(op.kind))
        return static_cast<int>(i);
    }
    SLUICE_CHECK(false, "{} was sent before it was made", schedule_.text(op));
    return -1;
  }

  Simulation finish() {
    double first = result_.devices.empty() ? 0 : result_.devices[0].first_start;
    double last = 0, last_reduced = 0;
    for (std::size_t d = 0; d < result_.devices.size(); ++d) {
      DeviceResult& device = result_.devices[d];
      device.peak_activations = activations_.peak(d) / schedule_.num_slices;
      if (costs_.measured) device.peak_bytes = bytes_.peak(d);
      first = std::min(first, device.first_start);
      last = std::max(last, device.last_end);
      last_reduced = std::max(last_reduced, state_[d].last_reduced);
      result_.span = std::max(result_.span, device.span());
      result_.ideal = std::max(result_.ideal, device.busy);
      result_.max_peak = std::max(result_.max_peak, device.peak_activations);
      result_.max_peak_bytes = std::max(result_.max_peak_bytes, device.peak_bytes);
    }
    result_.exposed_reduction = std::max(0.0, last_reduced - last);
    result_.makespan = std::max(last, last_reduced) - first;
    // Sums in another order may differ in the last bit; that is no bubble.
    result_.bubble = std::max(0.0, result_.span - result_.ideal);
    if (result_.bubble < 1e-12 * result_.span) result_.bubble = 0;
    if (result_.span > 0) result_.bubble_rate = result_.bubble / result_.span;
    if (result_.ideal > 0) result_.bubble_fraction = result_.bubble / result_.ideal;
    if (options_.timeline) describe_timeline();
    return std::move(result_);
  }

  void describe_timeline() {
    Timeline& timeline = result_.timeline;
    timeline.name = schedule_.name;
    timeline.seconds = timeline.bytes = costs_.measured;
    timeline.num_stages = schedule_.num_stages();
    timeline.num_stages_per_device = schedule_.placement.stages_per_device();
    timeline.num_slices = schedule_.num_slices;
    timeline.num_pipes = schedule_.num_pipes();
    timeline.makespan = result_.makespan;
    for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
      const DeviceResult& device = result_.devices[d];
      timeline.devices[d].busy = device.busy;
      timeline.devices[d].peak = costs_.measured ? device.peak_bytes : device.peak_activations;
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const SimulateOptions options_;
  const bool explicit_sends_;
  std::vector<double> arrival_;  // per cell and direction: when the consumer has it
  std::vector<int> message_of_;  // the same, as an index of timeline.messages
  std::vector<Route> routes_;    // per pipe, stage and direction
  std::vector<double> channel_free_;
  std::vector<Device> state_;
  std::vector<std::size_t> runnable_;
  MemoryReplay activations_;
  MemoryReplay bytes_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options) {
  return Simulator(schedule, costs, options).run();
}

namespace {

// The span behind which a device's last reduction began, or the first of those that it waited for.
int first_cause(const DeviceTimeline& device) {
  std::size_t i = device.reductions.size() - 1;
  const auto waited = [&](const Reduction& reduction) {
    return reduction.start > device.spans[static_cast<std::size_t>(reduction.span)].end;
  };
  while (i > 0 && waited(device.reductions[i]))
    --i;
  return device.reductions[i].span;
}

}  // namespace

std::vector<CriticalStep> critical_path(const Timeline& timeline) {
  std::vector<CriticalStep> path;
  CriticalStep at{-1, -1};
  double latest = -1;
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    const auto& spans = timeline.devices[d].spans;
    for (std::size_t i = spans.size(); i-- > 0 && spans[i].end >= latest;)
      if (spans[i].end > latest) {
        latest = spans[i].end;
        at = {static_cast<int>(d), static_cast<int>(i)};
      }
  }
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    const DeviceTimeline& device = timeline.devices[d];
    if (device.reductions.empty() || device.reductions.back().end <= latest) continue;
    latest = device.reductions.back().end;
    at = {static_cast<int>(d), first_cause(device)};
  }
  while (at.device >= 0 && at.span >= 0) {
    path.push_back(at);
    const Span& span = timeline.devices[static_cast<std::size_t>(at.device)]
                           .spans[static_cast<std::size_t>(at.span)];
    if (span.message >= 0) {
      const Message& message = timeline.messages[static_cast<std::size_t>(span.message)];
      at = {message.from, message.span};
    } else {
      --at.span;
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace sluice
