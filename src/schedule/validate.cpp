#include "schedule/validate.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/transforms/communication.h"

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

// What has been seen of one (stage, microbatch, slice). All its ops belong to one device.
using Seen = std::uint16_t;
constexpr Seen bit(OpKind kind) { return static_cast<Seen>(1u << static_cast<unsigned>(kind)); }
// What meets an input: F, or either op that gives the input gradient.
constexpr Seen wanted(const Op& input) {
  return input.kind == OpKind::F ? bit(OpKind::F) : bit(OpKind::I) | bit(OpKind::B);
}

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
      bool reduce = false, update = false;  // gradients since the last of each
      bool reduced = false;
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
            report(d, i, op, "no W or B of its stage came since the one before");
          (reduce ? fresh.reduce : fresh.update) = false;
          fresh.reduced = fresh.reduced || reduce;
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
          report(d, i, op, "a full backward beside a split one of the same microbatch");
        else if ((op.kind == OpKind::I || op.kind == OpKind::W) && (cell & bit(OpKind::B)))
          report(d, i, op, "a split backward beside a full one of the same microbatch");
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
            missing(OpKind::B, "is missing (and no I and W stand for it)");
          else if (!fused && !has_i)
            missing(OpKind::I, "is missing");
          else if (!fused && !has_w)
            missing(OpKind::W, "is missing");
        }
      }
    }
  }

  // Lowering stopped: some device's next op waits for what never comes. Either the input comes
  // later in the same program, or it is missing (and reported already), or devices wait for each
  // other: follow who waits for whom; where it comes back to itself is a cycle, and one problem
  // says all of it.
  void explain_stuck(const Lowered& lowered) {
    check_local_order();
    const std::size_t n = given_.programs.size();
    struct Wait {
      Op op, input;
      std::size_t position = 0;
      int on = -1;  // another device that should produce the input
    };
    std::vector<Wait> waits(n);
    std::vector<Seen> placed(given_.num_cells(), 0);
    for (std::size_t d = 0; d < n; ++d)
      for (std::size_t i = 0; i < lowered.placed[d]; ++i)
        if (is_compute(given_.programs[d][i].kind))
          placed[given_.cell(given_.programs[d][i])] |= bit(given_.programs[d][i].kind);
    for (std::size_t d = 0; d < n; ++d) {
      const Program& program = given_.programs[d];
      for (std::size_t i = lowered.placed[d];
           i < program.size() && (i == lowered.placed[d] || program[i].joined) && waits[d].on < 0;
           ++i)
        for (const Op& input : inputs_of(program[i], given_)) {
          const int producer = given_.device_of(input);
          if (placed[given_.cell(input)] & wanted(input)) continue;
          if (producer == static_cast<int>(d) || !(anywhere_[given_.cell(input)] & wanted(input)))
            continue;
          waits[d] = {program[i], input, i, producer};
          break;
        }
    }
    const auto step = [&](std::size_t d) {
      return fmt::format("device {} at position {} ({}) waits for {}", d, waits[d].position,
                         given_.text(waits[d].op), input_text(waits[d].input));
    };
    report_cycles(
        n, [&](std::size_t d) { return waits[d].on; }, step,
        [&](std::size_t d) { return given_.text(waits[d].op); },
        [&](std::size_t d) { return waits[d].position; });
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

  // One problem per cycle of the who-waits-for-whom relation (-1: does not wait).
  template <typename On, typename Step, typename OpText, typename Position>
  void report_cycles(std::size_t n, On on, Step step, OpText text, Position position) {
    std::vector<std::size_t> mark(n, 0);
    for (std::size_t start = 0; start < n; ++start) {
      std::size_t d = start;
      while (on(d) >= 0 && mark[d] == 0) {
        mark[d] = start + 1;
        d = static_cast<std::size_t>(on(d));
      }
      if (on(d) < 0 || mark[d] != start + 1) continue;
      std::string line = "deadlock: " + step(d);
      for (auto e = static_cast<std::size_t>(on(d)); e != d; e = static_cast<std::size_t>(on(e)))
        line += "; " + step(e);
      result_.problems.push_back(
          {static_cast<int>(d), static_cast<int>(position(d)), text(d), std::move(line)});
    }
    SLUICE_CHECK(!result_.valid(), "stuck, but nothing is missing and nobody waits in a circle");
  }

  // The proof over the lowered form.
  void prove(const Schedule& lowered) {
    check_inputs_and_buffers(lowered);
    collect_channels(lowered);
    // Where an input or a partner is not there, what waits for it says nothing new.
    if (check_channels(lowered) && inputs_there_) check_rendezvous(lowered);
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
      report(d, i, op, fmt::format("stage {} is on the same device: nothing travels", partner));
      return false;
    }
    return true;
  }

  // Sends and receives of one ordered pair of devices, as positions in the two programs.
  struct Channel {
    int from, to;
    std::vector<std::uint32_t> sends, recvs;
  };

  std::size_t channel_of(int from, int to) {
    const auto [at, added] = channel_index_.try_emplace({from, to}, channels_.size());
    if (added) channels_.push_back({from, to, {}, {}});
    return at->second;
  }

  void collect_channels(const Schedule& s) {
    const int num_pipes = s.num_pipes(), num_stages = s.num_stages();
    // Channel of a (pipe, stage)'s four kinds of transfer, found once.
    std::vector<std::array<std::size_t, 4>> channel(
        static_cast<std::size_t>(num_pipes) * static_cast<std::size_t>(num_stages),
        {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX});
    for (std::size_t d = 0; d < s.programs.size(); ++d) {
      for (std::size_t i = 0; i < s.programs[d].size(); ++i) {
        const Op& op = s.programs[d][i];
        if (!is_communication(op.kind)) continue;
        const int partner = partner_stage(op);
        if (partner < 0 || partner >= num_stages) continue;
        const int other = s.placement.device_of(op.pipe, partner);
        if (other == static_cast<int>(d)) continue;
        std::size_t& id =
            channel[static_cast<std::size_t>(op.pipe) * static_cast<std::size_t>(num_stages) +
                    static_cast<std::size_t>(op.stage)]
                   [static_cast<std::size_t>(op.kind) - static_cast<std::size_t>(OpKind::SendF)];
        const bool send = is_send(op.kind);
        const int self = static_cast<int>(d);
        if (id == SIZE_MAX) id = send ? channel_of(self, other) : channel_of(other, self);
        auto& list = send ? channels_[id].sends : channels_[id].recvs;
        list.push_back(static_cast<std::uint32_t>(i));
      }
    }
  }

  // The n-th send of a channel is taken by its n-th receive, and both speak of the same tensor.
  bool check_channels(const Schedule& s) {
    bool all_matched = true;
    for (const Channel& channel : channels_) {
      bool matched = true;
      const auto from = static_cast<std::size_t>(channel.from);
      const auto to = static_cast<std::size_t>(channel.to);
      const std::size_t common = std::min(channel.sends.size(), channel.recvs.size());
      for (std::size_t n = 0; n < common; ++n) {
        const Op& send = s.programs[from][channel.sends[n]];
        const Op& recv = s.programs[to][channel.recvs[n]];
        if (partner_stage(send) == recv.stage && partner_stage(recv) == send.stage &&
            send.microbatch == recv.microbatch && send.slice == recv.slice)
          continue;
        report(to, channel.recvs[n], recv,
               fmt::format("receive {} from device {} meets {} (position {} there): order differs",
                           n, from, s.text(send), channel.sends[n]));
        matched = false;
        break;  // everything after the first mismatch is shifted
      }
      if (channel.sends.size() > common && matched)
        report(from, channel.sends[common], s.programs[from][channel.sends[common]],
               fmt::format("device {} has no receive for it", to));
      if (channel.recvs.size() > common && matched)
        report(to, channel.recvs[common], s.programs[to][channel.recvs[common]],
               fmt::format("device {} has no send for it", from));
      all_matched = all_matched && matched && channel.sends.size() == channel.recvs.size();
    }
    return all_matched;
  }

  // The graph of program order, match and rendezvous edges has no cycle. Every program is a chain,
  // so peeling off nodes without open edges means letting devices advance: a receive is posted when
  // it is reached, a send ends when its receive has been posted, a compute op needs the sends of
  // what it received. What cannot be peeled off is a cycle or waits for one.
  void check_rendezvous(const Schedule& s) {
    const std::size_t n = s.programs.size();
    std::vector<std::uint32_t> at(n, 0);
    std::vector<std::vector<std::size_t>> channel_of_send(n), channel_of_recv(n);
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      channel_of_send[static_cast<std::size_t>(channels_[c].from)].push_back(c);
      channel_of_recv[static_cast<std::size_t>(channels_[c].to)].push_back(c);
    }
    std::vector<std::size_t> sent(channels_.size(), 0), posted(channels_.size(), 0);
    std::vector<Seen> done(s.num_cells(), 0);

    // The device that the next op of d waits for, or -1 when it may go.
    const auto waits_for = [&](std::size_t d) {
      const Op& op = s.programs[d][at[d]];
      if (is_send(op.kind)) {
        for (const std::size_t c : channel_of_send[d])
          if (sent[c] < channels_[c].sends.size() && channels_[c].sends[sent[c]] == at[d])
            return posted[c] > sent[c] ? -1 : channels_[c].to;
        return -1;
      }
      if (!is_compute(op.kind)) return -1;
      for (const Op& input : inputs_of(op, s)) {
        const int producer = s.device_of(input);
        if (producer == static_cast<int>(d)) continue;
        const OpKind carrier = input.kind == OpKind::F ? OpKind::SendF : OpKind::SendB;
        if (!(done[s.cell(input)] & bit(carrier))) return producer;
      }
      return -1;
    };

    std::vector<std::size_t> runnable(n);
    std::vector<char> queued(n, 1);
    for (std::size_t d = 0; d < n; ++d)
      runnable[d] = n - 1 - d;
    const auto wake = [&](int device) {
      const auto d = static_cast<std::size_t>(device);
      if (queued[d]) return;
      queued[d] = 1;
      runnable.push_back(d);
    };
    while (!runnable.empty()) {
      const std::size_t d = runnable.back();
      runnable.pop_back();
      queued[d] = 0;
      while (at[d] < s.programs[d].size() && waits_for(d) < 0) {
        const Op& op = s.programs[d][at[d]];
        if (is_send(op.kind)) {
          done[s.cell(op)] |= bit(op.kind);
          for (const std::size_t c : channel_of_send[d])
            if (sent[c] < channels_[c].sends.size() && channels_[c].sends[sent[c]] == at[d]) {
              ++sent[c];
              wake(channels_[c].to);
              break;
            }
        } else if (is_recv(op.kind)) {
          for (const std::size_t c : channel_of_recv[d])
            if (posted[c] < channels_[c].recvs.size() && channels_[c].recvs[posted[c]] == at[d]) {
              ++posted[c];
              wake(channels_[c].from);
              break;
            }
        }
        ++at[d];
      }
    }

    const auto on = [&](std::size_t d) { return at[d] < s.programs[d].size() ? waits_for(d) : -1; };
    bool stuck = false;
    for (std::size_t d = 0; d < n; ++d)
      stuck = stuck || at[d] < s.programs[d].size();
    if (!stuck) return;
    const auto step = [&](std::size_t d) {
      const Op& op = s.programs[d][at[d]];
      return fmt::format("device {} at position {} ({}) waits for device {} to {}", d, at[d],
                         s.text(op), on(d),
                         is_send(op.kind) ? "post its receive" : "send its input");
    };
    report_cycles(
        n, on, step, [&](std::size_t d) { return s.text(s.programs[d][at[d]]); },
        [&](std::size_t d) { return at[d]; });
  }

  const Schedule& given_;
  ValidateOptions options_;
  Validation result_;
  std::vector<Seen> anywhere_;  // what of each (stage, microbatch, slice) the schedule holds at all
  bool inputs_there_ = true;
  std::vector<Channel> channels_;
  std::map<std::pair<int, int>, std::size_t> channel_index_;
};

}  // namespace

Validation validate(const Schedule& schedule, const ValidateOptions& options) {
  return Validator(schedule, options).run();
}

}  // namespace sluice
