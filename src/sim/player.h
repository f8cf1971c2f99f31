// What every way of playing a schedule shares: where messages go and when they arrive, reductions,
// memory, and the totals. The derived class decides when an op starts and how long it takes.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/sim/memory_replay.h"
#include "sluice/sim/simulation.h"

namespace sluice {

class Player {
 protected:
  static constexpr double kNotYet = -1;

  // Where one (pipe, stage)'s output, or its input gradient, goes.
  struct Route {
    int to = -1;  // device; -1: nowhere, or the same device
    double latency = 0;
    double bytes_per_time = 0;
    std::size_t channel = 0;
  };

  // A REDUCE_GRAD or UPDATE that is done, and the span behind which (or in which) it was.
  struct WindowOp {
    double time = kNotYet;
    int span = -1;
  };

  struct Device {
    std::size_t next = 0;
    double clock = 0;  // it is free from here on
    // Index into arrival_, or behind those into window_ops_: what an UPDATE waits for.
    std::size_t waiting_for = SIZE_MAX;
    double data_link_free = 0;
    double last_reduced = 0;
    bool started = false;
  };

  Player(const Schedule& schedule, const Costs& costs, const SimulateOptions& options)
      : schedule_(schedule),
        costs_(costs),
        options_(options),
        explicit_sends_(schedule.has_communication()),
        arrival_(2 * schedule.num_cells(), kNotYet),
        window_ops_(2 * schedule.num_window_cells()),
        state_(schedule.programs.size()),
        activations_(schedule, activation_costs(schedule, options.keep_after_i)),
        bytes_(schedule, costs) {
    SLUICE_CHECK(
        costs.num_stages() == schedule.num_stages() && costs.num_slices() == schedule.num_slices,
        "costs of {} stages and {} slices for {} and {}", costs.num_stages(), costs.num_slices(),
        schedule.num_stages(), schedule.num_slices);
    make_routes();
    if (options.timeline) message_of_.assign(arrival_.size(), -1);
    const std::size_t n = schedule.programs.size();
    result_.devices.resize(n);
    if (options.timeline) result_.timeline.devices.resize(n);
    for (std::size_t d = n; d-- > 0;)
      runnable_.push_back(d);
  }

  // The next device that can go on, off the list. REQUIRES: there is one.
  std::size_t take_runnable() {
    const std::size_t d = runnable_.back();
    runnable_.pop_back();
    return d;
  }

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
  std::size_t window_slot(const Op& op) const {
    return 2 * schedule_.window_cell(op) + (op.kind == OpKind::Update ? 1 : 0);
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

  // Whether an op takes the device's time, rather than run beside the compute.
  static bool occupies(OpKind kind) { return is_compute(kind) || kind == OpKind::Update; }
  double duration(const Op& op) const {
    if (op.kind != OpKind::Update) return costs_.duration(op);
    // The others take the owner's weights.
    return schedule_.owner_of(op.stage) == schedule_.device_of(op) ? costs_.update_time(op.stage)
                                                                   : 0;
  }

  // Raises `start` to the arrival of the op's inputs; false (and a note to be woken) if one is not
  // there yet. Inputs made on this device come earlier in its program.
  bool wait_for_inputs(std::size_t d, const Op& op, double& start, int& message) {
    if (op.kind == OpKind::Update) return wait_for_window(d, op, start, message);
    for (const Op& input : inputs_of(op, schedule_)) {
      if (has_window(input.kind)) continue;                                 // made here
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

  // The same for an UPDATE. What other devices reduced or updated arrives a latency later.
  bool wait_for_window(std::size_t d, const Op& op, double& start, int& message) {
    Message latest{op, -1, static_cast<int>(d), -1, 0, 0};
    for (const Op& input : inputs_of(op, schedule_)) {
      const WindowOp& done = window_ops_[window_slot(input)];
      if (done.time == kNotYet) {
        state_[d].waiting_for = arrival_.size() + window_slot(input);
        return false;
      }
      const int from = schedule_.device_of(input);
      const bool here = from == static_cast<int>(d);
      const double arrival = done.time + (here ? 0 : costs_.link(from, latest.to).latency);
      if (arrival <= start) continue;
      start = arrival;
      latest = {input, here ? -1 : from, latest.to, done.span, done.time, arrival};
    }
    if (!options_.timeline || latest.from < 0 || latest.span < 0) return true;
    message = static_cast<int>(result_.timeline.messages.size());
    result_.timeline.messages.push_back(latest);
    return true;
  }

  // A REDUCE_GRAD or UPDATE is done: those that wait for it may look again.
  void finish_window_op(std::size_t d, const Op& op, double time) {
    const int span =
        options_.timeline ? static_cast<int>(result_.timeline.devices[d].spans.size()) - 1 : -1;
    window_ops_[window_slot(op)] = {time, span};
    for (std::size_t other = 0; other < state_.size(); ++other)
      if (state_[other].waiting_for == arrival_.size() + window_slot(op)) {
        state_[other].waiting_for = SIZE_MAX;
        runnable_.push_back(other);
      }
  }

  // The time of a group whose members run side by side.
  double together(const Program& program, std::size_t first, std::size_t end) const {
    double sum = 0, longest = 0;
    for (std::size_t i = first; i < end; ++i) {
      sum += costs_.duration(program[i]);
      longest = std::max(longest, costs_.duration(program[i]));
    }
    return longest + (1 - costs_.overlap) * (sum - longest);
  }

  // An op beside the compute, at the time from which the device is free.
  void run_beside(std::size_t d, const Op& op) {
    if (is_send(op.kind)) send(d, op, state_[d].clock);
    if (op.kind == OpKind::ReduceGrad) reduce(d, op);
  }

  // What a group makes leaves when the whole of it is done, as in the lowered form.
  void send_outputs(std::size_t d, std::size_t first, std::size_t end) {
    if (explicit_sends_) return;
    const Program& program = schedule_.programs[d];
    for (std::size_t i = first; i < end; ++i)
      if (is_compute(program[i].kind)) send(d, program[i], state_[d].clock);
  }

  void reduce(std::size_t d, const Op& op) {
    Device& device = state_[d];
    const double bytes = costs_.reduce_bytes(op.stage);
    if (bytes == 0) return finish_window_op(d, op, device.clock);
    const double start = std::max(device.clock, device.data_link_free);
    const Link& link = costs_.data_link;
    device.data_link_free = start + (link.bytes_per_time > 0 ? bytes / link.bytes_per_time : 0);
    device.last_reduced = device.data_link_free + link.latency;
    finish_window_op(d, op, device.last_reduced);
    if (!options_.timeline || device.last_reduced == start) return;
    DeviceTimeline& line = result_.timeline.devices[d];
    line.reductions.push_back(
        {op, static_cast<int>(line.spans.size()) - 1, start, device.last_reduced});
  }

  void record(std::size_t d, const Op& op, double start, double end, int message) {
    DeviceResult& device = result_.devices[d];
    if (!state_[d].started) {
      state_[d].started = true;
      device.first_start = start;
    }
    device.busy += end - start;
    device.last_end = std::max(device.last_end, end);
    if (!is_compute(op.kind)) {
      if (options_.timeline) result_.timeline.devices[d].spans.push_back({op, start, end, message});
      return;
    }
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
      const OpCosts& costs = costs_.of(op);
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
    for (std::size_t d = 0; d < state_.size(); ++d)
      SLUICE_CHECK(state_[d].next == schedule_.programs[d].size(),
                   "device {} stopped at op {} of {}: the schedule was not validated", d,
                   state_[d].next, schedule_.programs[d].size());
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
  std::vector<WindowOp> window_ops_;
  std::vector<int> message_of_;  // the same, as an index of timeline.messages
  std::vector<Route> routes_;    // per pipe, stage and direction
  std::vector<double> channel_free_;
  std::vector<Device> state_;
  std::vector<std::size_t> runnable_;
  MemoryReplay activations_;
  MemoryReplay bytes_;
  Simulation result_;
};

}  // namespace sluice
