#include "sluice/schedule/validate.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/schedule/deadlock.h"
#include "sluice/schedule/rendezvous.h"
#include "sluice/schedule/seen.h"
#include "sluice/schedule/transforms/communication.h"

namespace sluice {

std::string Problem::line() const {
  std::string where;
  if (device >= 0) where += fmt::format("device {}, ", device);
  if (position >= 0) where += fmt::format("position {}, ", position);
  if (!op.empty()) where += op + ", ";
  if (!where.empty()) {
    where.resize(where.size() - 2);
    where += ": ";
  }
  return where + text;
}

namespace {

class Validator {
 public:
  Validator(const Schedule& schedule, const ValidateOptions& options)
      : given_(schedule), options_(options), anywhere_(schedule) {}

  Validation run() {
    if (!check_windows()) return std::move(result_);
    const bool in_place = check_numbers();
    check_each_once();
    check_window_ops();
    if (!in_place) return std::move(result_);
    if (given_.has_communication()) {
      result_.lowered = given_;
      prove(given_);
    } else {
      Lowered lowered = add_communication(given_);
      if (lowered.complete)
        prove(lowered.schedule);
      else
        explain_stuck(lowered);
      result_.lowered = std::move(lowered.schedule);
    }
    if (given_.num_windows > 1 && result_.valid())
      result_.problems = staleness_problems(given_, options_.staleness);
    return std::move(result_);
  }

 private:
  void report(std::size_t device, std::size_t position, const Op& op, std::string text) {
    result_.problems.push_back(
        {static_cast<int>(device), static_cast<int>(position), given_.text(op), std::move(text)});
  }

  // An input as the schedule has it: B where that is what gives the input gradient.
  std::string input_text(Op input) const {
    if ((input.kind == OpKind::I || input.kind == OpKind::W) &&
        (anywhere_.of(input) & bit(OpKind::B)))
      input.kind = OpKind::B;
    return given_.text(input);
  }

  // Whether the op has a place in the tables.
  bool in_range(const Op& op) const {
    return op.stage >= 0 && op.stage < given_.num_stages() && op.pipe < given_.num_pipes() &&
           op.slice < given_.num_slices &&
           (!has_microbatch(op.kind) ||
            (op.microbatch >= 0 && op.microbatch < given_.num_microbatches)) &&
           (!has_window(op.kind) || window_in_range(op));
  }

  // The number of a REDUCE_GRAD or UPDATE: none where there is one window.
  bool window_in_range(const Op& op) const {
    return given_.num_windows > 1 ? op.microbatch >= 0 && op.microbatch < given_.num_windows
                                  : op.microbatch == -1;
  }

  bool check_windows() {
    const int windows = given_.num_windows;
    if (windows >= 1 && given_.num_microbatches % windows == 0) return true;
    result_.problems.push_back({-1, -1, "",
                                fmt::format("{} microbatches do not make {} windows of equal size",
                                            given_.num_microbatches, windows)});
    return false;
  }

  // Numbers in range, ops on the device and in the pipe that own them, groups of compute ops only.
  bool check_numbers() {
    const Schedule& s = given_;
    for (std::size_t d = 0; d < s.programs.size(); ++d) {
      for (std::size_t i = 0; i < s.programs[d].size(); ++i) {
        const Op& op = s.programs[d][i];
        if (op.stage < 0 || op.stage >= s.num_stages()) {
          report(d, i, op, fmt::format("the schedule has stages 0..{}", s.num_stages() - 1));
        } else if (op.pipe >= s.num_pipes()) {
          report(d, i, op, fmt::format("the schedule has pipes 0..{}", s.num_pipes() - 1));
        } else if (has_microbatch(op.kind) &&
                   (op.microbatch < 0 || op.microbatch >= s.num_microbatches)) {
          report(d, i, op,
                 fmt::format("the schedule has microbatches 0..{}", s.num_microbatches - 1));
        } else if (op.slice >= s.num_slices) {
          report(d, i, op, fmt::format("the schedule has slices 0..{}", s.num_slices - 1));
        } else if (has_microbatch(op.kind) && op.pipe != s.pipe_of(op.microbatch)) {
          report(d, i, op,
                 fmt::format("microbatch {} runs in pipe {} of {}", op.microbatch,
                             s.pipe_of(op.microbatch), s.num_pipes()));
        } else if (has_window(op.kind) && !window_in_range(op)) {
          report(d, i, op,
                 s.num_windows > 1
                     ? fmt::format("needs the number of its window, 0..{}", s.num_windows - 1)
                     : "the schedule has one window: leave its number out");
        } else if (s.device_of(op) != static_cast<int>(d)) {
          report(d, i, op, fmt::format("stage {} is on device {}", op.stage, s.device_of(op)));
        } else if (has_window(op.kind) &&
                   s.placement.lowest_pipe(static_cast<int>(d), op.stage) != op.pipe) {
          report(
              d, i, op,
              fmt::format("is written with the lowest pipe that has stage {} on this device: @{}",
                          op.stage, s.placement.lowest_pipe(static_cast<int>(d), op.stage)));
        } else if (!is_compute(op.kind) &&
                   (op.joined || (i + 1 < s.programs[d].size() && s.programs[d][i + 1].joined))) {
          report(d, i, op, "only F, I, W and B may run as one group");
        }
      }
    }
    return result_.valid();
  }

  // Each (device, stage, window) has at most one REDUCE_GRAD and one UPDATE; and exactly one where
  // the schedule updates weights at all.
  void check_window_ops() {
    bool updates = given_.num_windows > 1;
    for (std::size_t d = 0; d < given_.programs.size(); ++d) {
      for (std::size_t i = 0; i < given_.programs[d].size(); ++i) {
        const Op& op = given_.programs[d][i];
        if (!has_window(op.kind)) continue;
        updates = updates || op.kind == OpKind::Update;
        if (!in_range(op)) continue;
        if (anywhere_.has(op))
          report(d, i, op,
                 given_.num_windows > 1
                     ? "appears a second time"
                     : fmt::format("appears a second time; where there are several windows, number "
                                   "them: {0}{1}0, {0}{1}1, ...",
                                   op.stage, kind_name(op.kind)));
        anywhere_.add(op);
      }
    }
    if (!updates) return;
    for (int d = 0; d < given_.num_devices(); ++d)
      for (const int stage : given_.placement.held_by(d))
        for (int window = 0; window < given_.num_windows; ++window)
          for (const OpKind kind : {OpKind::ReduceGrad, OpKind::Update}) {
            const Op op = given_.window_op(kind, d, stage, window);
            if (!anywhere_.has(op))
              result_.problems.push_back(
                  {d, -1, given_.text(op),
                   "is missing: where weights are updated, each device has a REDUCE_GRAD and an "
                   "UPDATE of every stage that it holds"});
          }
  }

  // Every (stage, microbatch, slice) has one F and either one B or one I and one W.
  void check_each_once() {
    for (std::size_t d = 0; d < given_.programs.size(); ++d) {
      for (std::size_t i = 0; i < given_.programs[d].size(); ++i) {
        const Op& op = given_.programs[d][i];
        if (!has_microbatch(op.kind) || !in_range(op)) continue;
        const Seen cell = anywhere_.of(op);
        if (cell & bit(op.kind))
          report(d, i, op, "appears a second time");
        else if (op.kind == OpKind::B && (cell & (bit(OpKind::I) | bit(OpKind::W))))
          report(d, i, op, "this microbatch already has a split backward (I or W)");
        else if ((op.kind == OpKind::I || op.kind == OpKind::W) && (cell & bit(OpKind::B)))
          report(d, i, op, "this microbatch already has a full backward (B)");
        anywhere_.add(op);
      }
    }
    Op op;
    for (op.stage = 0; op.stage < given_.num_stages(); ++op.stage) {
      for (op.microbatch = 0; op.microbatch < given_.num_microbatches; ++op.microbatch) {
        op.pipe = static_cast<std::uint16_t>(given_.pipe_of(op.microbatch)) & 0x7ff;
        for (int c = 0; c < given_.num_slices; ++c) {
          op.slice = static_cast<std::uint16_t>(c);
          op.kind = OpKind::F;
          const Seen cell = anywhere_.of(op);
          const auto missing = [&](OpKind kind, std::string_view text) {
            op.kind = kind;
            result_.problems.push_back(
                {given_.device_of(op), -1, given_.text(op), std::string(text)});
          };
          if (!(cell & bit(OpKind::F))) missing(OpKind::F, "is missing");
          const bool fused = cell & bit(OpKind::B);
          const bool has_i = cell & bit(OpKind::I), has_w = cell & bit(OpKind::W);
          if (!fused && !has_i && !has_w)
            missing(OpKind::B, "is missing, and so are I and W in its place");
          else if (!fused && !has_i)
            missing(OpKind::I, "is missing");
          else if (!fused && !has_w)
            missing(OpKind::W, "is missing");
        }
      }
    }
  }

  // Lowering stopped: some device's next op waits for an input that never comes. Either the input
  // comes later in the same program, or it is missing (and reported already), or devices wait for
  // each other. The last case is a cycle in who waits for whom; one problem describes all of it.
  void explain_stuck(const Lowered& lowered) {
    check_local_order();
    const std::size_t n = given_.programs.size();
    std::vector<Waiting> waiting(n);
    SeenOps placed(given_);
    for (std::size_t d = 0; d < n; ++d)
      for (std::size_t i = 0; i < lowered.placed[d]; ++i)
        placed.add(given_.programs[d][i]);
    for (std::size_t d = 0; d < n; ++d) {
      const Program& program = given_.programs[d];
      for (std::size_t i = lowered.placed[d];
           i < program.size() && (i == lowered.placed[d] || program[i].joined) && waiting[d].on < 0;
           ++i)
        for (const Op& input : inputs_of(program[i], given_)) {
          const int producer = given_.device_of(input);
          if (placed.meets(input)) continue;
          if (producer == static_cast<int>(d) || !anywhere_.meets(input)) continue;
          const std::string op = given_.text(program[i]);
          waiting[d] = {producer, i, op,
                        fmt::format("device {} at position {} ({}) waits for {}", d, i, op,
                                    input_text(input))};
          break;
        }
    }
    report_deadlocks(waiting, result_.problems);
  }

  // Inside each program of a compute-only schedule: what is made on the device comes before its
  // use.
  void check_local_order() {
    SeenOps seen(given_);
    for (std::size_t d = 0; d < given_.programs.size(); ++d) {
      const Program& program = given_.programs[d];
      for (std::size_t first = 0; first < program.size();) {
        const std::size_t end = group_end(program, first);
        for (std::size_t i = first; i < end; ++i)
          for (const Op& input : inputs_of(program[i], given_))
            if (given_.device_of(input) == static_cast<int>(d))
              check_local_input(given_, seen, d, i, input);
        for (; first < end; ++first)
          seen.add(program[first]);
      }
    }
  }

  // The proof over the lowered form.
  void prove(const Schedule& lowered) {
    check_inputs_and_buffers(lowered);
    const Rendezvous rendezvous(lowered);
    // Where an input or a partner is missing, that is reported; what waits for it is not.
    if (rendezvous.check_order(result_.problems) && inputs_there_)
      rendezvous.check_progress(result_.problems);
  }

  // Inside each program: an input is there before its use, made locally or received; and how many
  // receives are posted and not yet used.
  void check_inputs_and_buffers(const Schedule& s) {
    SeenOps seen(s);
    result_.receive_buffers.assign(s.programs.size(), 0);
    for (std::size_t d = 0; d < s.programs.size(); ++d) {
      const Program& program = s.programs[d];
      int buffers = 0;
      for (std::size_t first = 0; first < program.size();) {
        const std::size_t end = group_end(program, first);
        for (std::size_t i = first; i < end; ++i) {
          check_inputs(s, seen, d, i);
          if (is_recv(program[i].kind)) ++buffers;
        }
        if (buffers > result_.receive_buffers[d]) {
          result_.receive_buffers[d] = buffers;
          if (options_.max_buffers >= 0 && buffers == options_.max_buffers + 1)
            report(d, first, program[first],
                   fmt::format("needs more than {} receive buffers{}", options_.max_buffers,
                               &s == &given_ ? "" : " (position in the lowered program)"));
        }
        for (std::size_t i = first; i < end; ++i) {
          const Op& op = program[i];
          const Seen before = seen.of(op);
          seen.add(op);
          if (op.kind == OpKind::F && (before & bit(OpKind::RecvF))) --buffers;
          if (gives_input_gradient(op.kind) && (before & bit(OpKind::RecvB))) --buffers;
        }
        first = end;
      }
    }
  }

  void check_inputs(const Schedule& s, const SeenOps& seen, std::size_t d, std::size_t i) {
    const Op& op = s.programs[d][i];
    if (is_communication(op.kind) && !check_transfer(s, d, i)) return;
    if (is_recv(op.kind)) return;  // its input is on the other device
    for (const Op& input : inputs_of(op, s)) {
      if (s.device_of(input) == static_cast<int>(d)) {
        check_local_input(s, seen, d, i, input);
        continue;
      }
      if (has_window(op.kind)) {
        if (!anywhere_.meets(input)) inputs_there_ = false;  // reported as missing
        continue;
      }
      Op recv = op;
      recv.joined = 0;
      recv.kind = input.kind == OpKind::F ? OpKind::RecvF : OpKind::RecvB;
      if (seen.has(recv)) continue;
      inputs_there_ = false;
      report(d, i, op, fmt::format("{} must come before it", s.text(recv)));
    }
  }

  // An input that is nowhere in the schedule is reported as missing, not again at each use.
  void check_local_input(const Schedule& s, const SeenOps& seen, std::size_t d, std::size_t i,
                         const Op& input) {
    if (seen.meets(input)) return;
    inputs_there_ = false;
    if (!anywhere_.meets(input)) return;
    const Op& op = s.programs[d][i];
    report(d, i, op,
           fmt::format("{} must come before it{}", input_text(input),
                       op.kind == OpKind::ReduceGrad ? ": its gradient would be lost" : ""));
  }

  // A send or receive must have a partner on another device.
  bool check_transfer(const Schedule& s, std::size_t d, std::size_t i) {
    const Op& op = s.programs[d][i];
    const int partner = partner_stage(op);
    if (partner < 0 || partner >= s.num_stages()) {
      report(d, i, op, fmt::format("there is no stage {} to exchange it with", partner));
      return false;
    }
    if (s.placement.device_of(op.pipe, partner) == static_cast<int>(d)) {
      report(d, i, op, fmt::format("stage {} is on the same device: nothing to send", partner));
      return false;
    }
    return true;
  }

  const Schedule& given_;
  ValidateOptions options_;
  Validation result_;
  SeenOps anywhere_;  // what the schedule holds at all
  bool inputs_there_ = true;
};

}  // namespace

Validation validate(const Schedule& schedule, const ValidateOptions& options) {
  return Validator(schedule, options).run();
}

}  // namespace sluice
