#include "sluice/schedule/validate.h"

#include <algorithm>
#include <map>

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
      : given_(schedule), options_(options) {}

  Validation run() {
    const bool in_place = check_numbers();
    check_each_once();
    check_reductions();
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
    return std::move(result_);
  }

 private:
  void report(std::size_t device, std::size_t position, const Op& op, std::string text) {
    result_.problems.push_back(
        {static_cast<int>(device), static_cast<int>(position), given_.text(op), std::move(text)});
  }

  // An input as the schedule has it: B where that is what gives the input gradient.
  std::string input_text(Op input) const {
    if (input.kind == OpKind::I && (anywhere_[given_.cell(input)] & bit(OpKind::B)))
      input.kind = OpKind::B;
    return given_.text(input);
  }

  // Whether the op has a place in the tables.
  bool in_range(const Op& op) const {
    return op.stage >= 0 && op.stage < given_.num_stages() && op.pipe < given_.num_pipes() &&
           op.slice < given_.num_slices &&
           (!has_microbatch(op.kind) ||
            (op.microbatch >= 0 && op.microbatch < given_.num_microbatches));
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
        } else if (s.device_of(op) != static_cast<int>(d)) {
          report(d, i, op, fmt::format("stage {} is on device {}", op.stage, s.device_of(op)));
        } else if (!is_compute(op.kind) &&
                   (op.joined || (i + 1 < s.programs[d].size() && s.programs[d][i + 1].joined))) {
          report(d, i, op, "only F, I, W and B may run as one group");
        }
      }
    }
    return result_.valid();
  }

  // A reduction or an update needs a weight gradient that came since the one before it; and where a
  // stage is reduced at all, no gradient may come after its last reduction.
  void check_reductions() {
    struct Fresh {
      bool reduce = false, update = false;    // gradients since the last of each
      bool reduced = false, updated = false;  // whether there was one at all
      std::size_t last_gradient = 0;
    };
    for (std::size_t d = 0; d < given_.programs.size(); ++d) {
      const Program& program = given_.programs[d];
      std::map<int, Fresh> stages;
      for (std::size_t i = 0; i < program.size(); ++i) {
        const Op& op = program[i];
        Fresh& fresh = stages[op.stage];
        if (gives_weight_gradient(op.kind)) {
          fresh.reduce = fresh.update = true;
          fresh.last_gradient = i;
        } else if (op.kind == OpKind::ReduceGrad || op.kind == OpKind::Update) {
          const bool reduce = op.kind == OpKind::ReduceGrad;
          if (!(reduce ? fresh.reduce : fresh.update))
            report(d, i, op,
                   (reduce ? fresh.reduced : fresh.updated)
                       ? fmt::format("no W or B of stage {} comes between it and the {} before it",
                                     op.stage, kind_name(op.kind))
                       : fmt::format("no W or B of stage {} comes before it", op.stage));
          (reduce ? fresh.reduce : fresh.update) = false;
          (reduce ? fresh.reduced : fresh.updated) = true;
        }
      }
      for (const auto& [stage, fresh] : stages)
        if (fresh.reduced && fresh.reduce)
          report(d, fresh.last_gradient, program[fresh.last_gradient],
                 "its gradient comes after the stage's last REDUCE_GRAD");
    }
  }

  // Every (stage, microbatch, slice) has one F and either one B or one I and one W.
  void check_each_once() {
    anywhere_.assign(given_.num_cells(), 0);
    for (std::size_t d = 0; d < given_.programs.size(); ++d) {
      for (std::size_t i = 0; i < given_.programs[d].size(); ++i) {
        const Op& op = given_.programs[d][i];
        if (!has_microbatch(op.kind) || !in_range(op)) continue;
        Seen& cell = anywhere_[given_.cell(op)];
        if (cell & bit(op.kind))
          report(d, i, op, "appears a second time");
        else if (op.kind == OpKind::B && (cell & (bit(OpKind::I) | bit(OpKind::W))))
          report(d, i, op, "this microbatch already has a split backward (I or W)");
        else if ((op.kind == OpKind::I || op.kind == OpKind::W) && (cell & bit(OpKind::B)))
          report(d, i, op, "this microbatch already has a full backward (B)");
        cell |= bit(op.kind);
      }
    }
    Op op;
    for (op.stage = 0; op.stage < given_.num_stages(); ++op.stage) {
      for (op.microbatch = 0; op.microbatch < given_.num_microbatches; ++op.microbatch) {
        op.pipe = static_cast<std::uint16_t>(given_.pipe_of(op.microbatch)) & 0x7ff;
        for (int c = 0; c < given_.num_slices; ++c) {
          op.slice = static_cast<std::uint16_t>(c);
          const Seen cell = anywhere_[given_.cell(op)];
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
    std::vector<Seen> placed(given_.num_cells(), 0);
    for (std::size_t d = 0; d < n; ++d)
      for (std::size_t i = 0; i < lowered.placed[d]; ++i)
        if (is_compute(given_.programs[d][i].kind))
          placed[given_.cell(given_.programs[d][i])] |= bit(given_.programs[d][i].kind);
    for (std::size_t d = 0; d < n; ++d) {
      const Program& program = given_.programs[d];
      for (std::size_t i = lowered.placed[d];
           i < program.size() && (i == lowered.placed[d] || program[i].joined) && waiting[d].on < 0;
           ++i)
        for (const Op& input : inputs_of(program[i], given_)) {
          const int producer = given_.device_of(input);
          if (placed[given_.cell(input)] & wanted(input)) continue;
          if (producer == static_cast<int>(d) || !(anywhere_[given_.cell(input)] & wanted(input)))
            continue;
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
    std::vector<Seen> seen(given_.num_cells(), 0);
    for (std::size_t d = 0; d < given_.programs.size(); ++d) {
      const Program& program = given_.programs[d];
      for (std::size_t first = 0; first < program.size();) {
        const std::size_t end = group_end(program, first);
        for (std::size_t i = first; i < end; ++i)
          for (const Op& input : inputs_of(program[i], given_))
            if (given_.device_of(input) == static_cast<int>(d))
              check_local_input(given_, seen, d, i, input);
        for (; first < end; ++first)
          if (is_compute(program[first].kind))
            seen[given_.cell(program[first])] |= bit(program[first].kind);
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
    std::vector<Seen> seen(s.num_cells(), 0);
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
          if (!has_microbatch(op.kind)) continue;
          const Seen before = seen[s.cell(op)];
          seen[s.cell(op)] |= bit(op.kind);
          if (op.kind == OpKind::F && (before & bit(OpKind::RecvF))) --buffers;
          if (gives_input_gradient(op.kind) && (before & bit(OpKind::RecvB))) --buffers;
        }
        first = end;
      }
    }
  }

  void check_inputs(const Schedule& s, const std::vector<Seen>& seen, std::size_t d,
                    std::size_t i) {
    const Op& op = s.programs[d][i];
    if (is_communication(op.kind) && !check_transfer(s, d, i)) return;
    if (is_recv(op.kind)) return;  // its input is on the other device
    for (const Op& input : inputs_of(op, s)) {
      if (s.device_of(input) == static_cast<int>(d)) {
        check_local_input(s, seen, d, i, input);
        continue;
      }
      Op recv = op;
      recv.joined = 0;
      recv.kind = input.kind == OpKind::F ? OpKind::RecvF : OpKind::RecvB;
      if (seen[s.cell(op)] & bit(recv.kind)) continue;
      inputs_there_ = false;
      report(d, i, op, fmt::format("{} must come before it", s.text(recv)));
    }
  }

  // An input that is nowhere in the schedule is reported as missing, not again at each use.
  void check_local_input(const Schedule& s, const std::vector<Seen>& seen, std::size_t d,
                         std::size_t i, const Op& input) {
    if (seen[s.cell(input)] & wanted(input)) return;
    inputs_there_ = false;
    if (anywhere_[s.cell(input)] & wanted(input))
      report(d, i, s.programs[d][i], fmt::format("{} must come before it", input_text(input)));
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
  std::vector<Seen> anywhere_;  // what of each (stage, microbatch, slice) the schedule holds at all
  bool inputs_there_ = true;
};

}  // namespace

Validation validate(const Schedule& schedule, const ValidateOptions& options) {
  return Validator(schedule, options).run();
}

}  // namespace sluice
