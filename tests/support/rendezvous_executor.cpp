#include "support/rendezvous_executor.h"

#include <deque>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice {
namespace {

enum class Tensor {
  output,               // of a stage's forward
  input_gradient,       // of a stage
  weight_gradient,      // of a stage
  received_activation,  // what the stage before gave, here
  received_gradient,    // what the stage after gave, here
};

// A tensor's whole name: what, stage, microbatch, slice.
using Name = std::tuple<Tensor, int, int, int>;

struct Device {
  std::size_t at = 0;
  std::set<Name> holds;
  std::set<Name> expects;                          // receives posted, whether arrived or not
  std::set<std::pair<int, int>> reduced, updated;  // (stage, window)
};

struct Wrong {
  std::string text;
};

class Executor {
 public:
  Executor(const Schedule& schedule, Transfers transfers)
      : schedule_(schedule), transfers_(transfers), devices_(schedule.programs.size()) {}

  RunResult run(std::optional<std::uint32_t> seed) {
    std::minstd_rand random(seed.value_or(1));
    try {
      for (;;) {
        bool anyone = false;
        if (seed) {
          std::vector<std::size_t> able;
          for (std::size_t d = 0; d < devices_.size(); ++d)
            if (can_go(d)) able.push_back(d);
          anyone = !able.empty();
          if (anyone) go(able[random() % able.size()]);
        } else {
          for (std::size_t d = 0; d < devices_.size(); ++d) {
            if (!can_go(d)) continue;
            go(d);
            anyone = true;
          }
        }
        if (!anyone) break;
      }
      for (std::size_t d = 0; d < devices_.size(); ++d)
        if (devices_[d].at < schedule_.programs[d].size())
          return {ExecutionEnd::stuck, "device " + std::to_string(d) + " waits at " +
                                           schedule_.text(schedule_.programs[d][devices_[d].at])};
      check_nothing_left();
    } catch (const Wrong& wrong) {
      return {ExecutionEnd::wrong, wrong.text};
    }
    return {};
  }

 private:
  // The ops that run as one with the next op of a device.
  std::vector<Op> next_ops(std::size_t d) const {
    const Program& program = schedule_.programs[d];
    std::vector<Op> ops = {program[devices_[d].at]};
    for (std::size_t i = devices_[d].at + 1; i < program.size() && program[i].joined; ++i)
      ops.push_back(program[i]);
    return ops;
  }

  // The device of a stage as an op of that pipe sees it; -1 if there is no such stage.
  int home(const Op& op, int stage) const {
    if (stage < 0 || stage >= schedule_.num_stages()) return -1;
    return schedule_.placement.device_of(op.pipe, stage);
  }

  bool can_go(std::size_t d) const {
    if (devices_[d].at == schedule_.programs[d].size()) return false;
    const std::vector<Op> ops = next_ops(d);
    for (const Op& op : ops) {
      check_belongs(op, d);
      if (ops.size() > 1 && !is_compute(op.kind)) throw Wrong{"no compute op in a group"};
      if (!has_inputs(op, d)) return false;
    }
    return true;
  }

  void check_belongs(const Op& op, std::size_t d) const {
    const bool stage_fits = op.stage >= 0 && op.stage < schedule_.num_stages();
    const bool pipe_fits = op.pipe < schedule_.num_pipes();
    const bool slice_fits = op.slice < schedule_.num_slices;
    if (!stage_fits || !pipe_fits || !slice_fits) throw Wrong{"no such stage, pipe or slice"};
    if (has_microbatch(op.kind)) {
      if (op.microbatch < 0 || op.microbatch >= schedule_.num_microbatches)
        throw Wrong{"no such microbatch"};
      if (op.microbatch % schedule_.num_pipes() != op.pipe)
        throw Wrong{"microbatch of another pipe"};
    }
    if (home(op, op.stage) != static_cast<int>(d)) throw Wrong{"op on another device's stage"};
  }

  // Whether device d has `name`, which nobody else can bring: if it does not, the op is in error.
  void must_hold(std::size_t d, const Name& name) const {
    if (!devices_[d].holds.contains(name)) throw Wrong{"an input was never made here"};
  }

  // Whether a tensor from the neighbour stage on another device is here. It may still be on its
  // way.
  bool has_arrived(std::size_t d, const Name& name) const {
    if (devices_[d].holds.contains(name)) return true;
    if (transfers_ == Transfers::rendezvous && !devices_[d].expects.contains(name))
      throw Wrong{"an input's receive was never posted"};
    return false;
  }

  bool has_inputs(const Op& op, std::size_t d) const {
    const int s = op.stage, m = op.microbatch, c = op.slice;
    switch (op.kind) {
      case OpKind::F:
        must_have_weights(op, d);
        if (c > 0) must_hold(d, {Tensor::output, s, m, c - 1});
        if (s == 0) return true;
        if (home(op, s - 1) == static_cast<int>(d)) {
          must_hold(d, {Tensor::output, s - 1, m, c});
          return true;
        }
        return has_arrived(d, {Tensor::received_activation, s, m, c});
      case OpKind::I:
      case OpKind::B:
        must_hold(d, {Tensor::output, s, m, c});
        if (c + 1 < schedule_.num_slices) must_hold(d, {Tensor::input_gradient, s, m, c + 1});
        if (s + 1 == schedule_.num_stages()) return true;
        if (home(op, s + 1) == static_cast<int>(d)) {
          must_hold(d, {Tensor::input_gradient, s + 1, m, c});
          return true;
        }
        return has_arrived(d, {Tensor::received_gradient, s, m, c});
      case OpKind::W: must_hold(d, {Tensor::input_gradient, s, m, c}); return true;
      case OpKind::SendF:
        must_hold(d, {Tensor::output, s, m, c});
        return receive_is_posted(op, d, s + 1);
      case OpKind::SendB:
        must_hold(d, {Tensor::input_gradient, s, m, c});
        return receive_is_posted(op, d, s - 1);
      case OpKind::RecvF: check_partner(op, d, s - 1); return true;
      case OpKind::RecvB: check_partner(op, d, s + 1); return true;
      case OpKind::ReduceGrad: must_have_all_gradients(op, d); return true;
      case OpKind::Update: return may_update(op, d);
      case OpKind::Unshard:
      case OpKind::Reshard: return true;
    }
    return true;
  }

  // Where a window uses the weights from before the window before it, these must be there.
  void must_have_weights(const Op& op, std::size_t d) const {
    if (schedule_.weights != WeightVersions::previous) return;
    const int each = schedule_.num_microbatches / schedule_.num_windows;
    const int w = op.microbatch / each;
    if (w >= 2 && !devices_[d].updated.contains({op.stage, w - 2}))
      throw Wrong{"weights that do not exist yet"};
  }

  // The number that an op of a window carries, counted from 0.
  int window(const Op& op) const {
    const bool counted = schedule_.num_windows > 1;
    if (counted ? op.microbatch < 0 || op.microbatch >= schedule_.num_windows : op.microbatch != -1)
      throw Wrong{"no such window"};
    for (int pipe = 0; pipe < op.pipe; ++pipe)
      if (schedule_.placement.device_of(pipe, op.stage) == home(op, op.stage))
        throw Wrong{"not the lowest pipe of the stage here"};
    return counted ? op.microbatch : 0;
  }

  // Every microbatch of the window that has its stage `op.stage` on this device has left its weight
  // gradient here: what comes later would be lost.
  void must_have_all_gradients(const Op& op, std::size_t d) const {
    const int w = window(op), each = schedule_.num_microbatches / schedule_.num_windows;
    if (devices_[d].reduced.contains({op.stage, w})) throw Wrong{"reduced a second time"};
    for (int m = w * each; m < (w + 1) * each; ++m)
      if (schedule_.placement.device_of(m % schedule_.num_pipes(), op.stage) == static_cast<int>(d))
        for (int c = 0; c < schedule_.num_slices; ++c)
          must_hold(d, {Tensor::weight_gradient, op.stage, m, c});
  }

  // New weights need the gradients of every device that has a part in them, and come from the
  // device of the stage in pipe 0.
  bool may_update(const Op& op, std::size_t d) const {
    const int w = window(op), s = op.stage;
    const Device& own = devices_[d];
    if (!own.reduced.contains({s, w})) throw Wrong{"updated before its own gradients"};
    if (own.updated.contains({s, w})) throw Wrong{"updated a second time"};
    if (w > 0 && !own.updated.contains({s, w - 1})) throw Wrong{"updated out of order"};
    for (int pipe = 0; pipe < schedule_.num_pipes(); ++pipe)
      for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
        if (schedule_.updates_by_stage && stage != s) continue;
        const auto holder = static_cast<std::size_t>(schedule_.placement.device_of(pipe, stage));
        if (!devices_[holder].reduced.contains({stage, w})) return false;
      }
    const auto owner = static_cast<std::size_t>(schedule_.placement.device_of(0, s));
    return owner == d || devices_[owner].updated.contains({s, w});
  }

  void check_partner(const Op& op, std::size_t d, int stage) const {
    if (transfers_ == Transfers::instant) throw Wrong{"communication in a compute-only schedule"};
    const int other = home(op, stage);
    if (other < 0) throw Wrong{"no stage to exchange with"};
    if (other == static_cast<int>(d)) throw Wrong{"nothing travels inside a device"};
  }

  bool receive_is_posted(const Op& op, std::size_t d, int stage) const {
    check_partner(op, d, stage);
    const auto queue = posted_.find({static_cast<int>(d), home(op, stage)});
    return queue != posted_.end() && !queue->second.empty();
  }

  void go(std::size_t d) {
    for (const Op& op : next_ops(d)) {
      const int s = op.stage, m = op.microbatch, c = op.slice;
      switch (op.kind) {
        case OpKind::F:
          make(d, {Tensor::output, s, m, c});
          hand_over(op, s + 1, {Tensor::received_activation, s + 1, m, c});
          break;
        case OpKind::B: make(d, {Tensor::weight_gradient, s, m, c}); [[fallthrough]];
        case OpKind::I:
          make(d, {Tensor::input_gradient, s, m, c});
          hand_over(op, s - 1, {Tensor::received_gradient, s - 1, m, c});
          break;
        case OpKind::W: make(d, {Tensor::weight_gradient, s, m, c}); break;
        case OpKind::SendF: send(op, d, s + 1, {Tensor::received_activation, s + 1, m, c}); break;
        case OpKind::SendB: send(op, d, s - 1, {Tensor::received_gradient, s - 1, m, c}); break;
        case OpKind::RecvF: post(op, d, s - 1, {Tensor::received_activation, s, m, c}); break;
        case OpKind::RecvB: post(op, d, s + 1, {Tensor::received_gradient, s, m, c}); break;
        case OpKind::ReduceGrad: devices_[d].reduced.insert({s, window(op)}); break;
        case OpKind::Update: devices_[d].updated.insert({s, window(op)}); break;
        case OpKind::Unshard:
        case OpKind::Reshard: break;
      }
      ++devices_[d].at;
    }
  }

  void make(std::size_t d, const Name& name) {
    if (!devices_[d].holds.insert(name).second) throw Wrong{"made a second time"};
  }

  void hand_over(const Op& op, int stage, const Name& name) {
    if (transfers_ == Transfers::rendezvous) return;
    const int to = home(op, stage);
    if (to >= 0) devices_[static_cast<std::size_t>(to)].holds.insert(name);
  }

  void post(const Op& op, std::size_t d, int stage, const Name& name) {
    if (!devices_[d].expects.insert(name).second) throw Wrong{"received a second time"};
    posted_[{home(op, stage), static_cast<int>(d)}].push_back(name);
  }

  void send(const Op& op, std::size_t d, int stage, const Name& name) {
    const int to = home(op, stage);
    std::deque<Name>& queue = posted_[{static_cast<int>(d), to}];
    if (queue.front() != name) throw Wrong{"another tensor was expected"};
    queue.pop_front();
    devices_[static_cast<std::size_t>(to)].holds.insert(name);
  }

  void check_nothing_left() const {
    check_updates();
    for (const auto& [pair, queue] : posted_)
      if (!queue.empty()) throw Wrong{"a receive was never met"};
    for (int s = 0; s < schedule_.num_stages(); ++s)
      for (int m = 0; m < schedule_.num_microbatches; ++m)
        for (int c = 0; c < schedule_.num_slices; ++c) {
          const auto home_device =
              static_cast<std::size_t>(schedule_.placement.device_of(m % schedule_.num_pipes(), s));
          for (const Tensor what :
               {Tensor::output, Tensor::input_gradient, Tensor::weight_gradient})
            if (!devices_[home_device].holds.contains({what, s, m, c}))
              throw Wrong{"something was never made"};
        }
  }

  // A schedule that updates weights, or says that it has several windows, updates every stage on
  // every device that has it, once per window.
  void check_updates() const {
    bool updates = schedule_.num_windows > 1;
    for (const Device& device : devices_)
      updates = updates || !device.updated.empty();
    if (!updates) return;
    for (int pipe = 0; pipe < schedule_.num_pipes(); ++pipe)
      for (int s = 0; s < schedule_.num_stages(); ++s)
        for (int w = 0; w < schedule_.num_windows; ++w) {
          const auto d = static_cast<std::size_t>(schedule_.placement.device_of(pipe, s));
          if (!devices_[d].updated.contains({s, w})) throw Wrong{"a stage was never updated"};
        }
  }

  const Schedule& schedule_;
  Transfers transfers_;
  std::vector<Device> devices_;
  // Receives posted and not yet met, per (from, to), in the order of posting.
  std::map<std::pair<int, int>, std::deque<Name>> posted_;
};

}  // namespace

RunResult run_schedule(const Schedule& schedule, Transfers transfers,
                       std::optional<std::uint32_t> seed) {
  return Executor(schedule, transfers).run(seed);
}

}  // namespace sluice
