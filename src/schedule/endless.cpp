#include "sluice/schedule/endless.h"

#include <algorithm>
#include <map>

#include "sluice/base/error.h"
#include "sluice/schedule/validate.h"

namespace sluice {
// By stage, microbatch and kind, the part of each op that a microbatch has.
class EndlessSchedule::PartOf {
 public:
  explicit PartOf(const Schedule& schedule)
      : schedule_(schedule), parts_(schedule.num_cells() * kKinds, -1) {}

  int& at(const Op& op) { return parts_[index(op)]; }
  int at(const Op& op) const { return parts_[index(op)]; }

 private:
  static constexpr std::size_t kKinds = static_cast<std::size_t>(OpKind::RecvB) + 1;
  std::size_t index(const Op& op) const {
    return schedule_.cell(op) * kKinds + static_cast<std::size_t>(op.kind);
  }

  const Schedule& schedule_;
  std::vector<int> parts_;
};

EndlessSchedule::EndlessSchedule(Schedule windows) : schedule_(std::move(windows)) {
  SLUICE_CHECK(schedule_.num_windows > 1, "{} has {} windows", schedule_.name,
               schedule_.num_windows);
  if (schedule_.window_size() % schedule_.num_pipes() != 0)
    throw user_error(
        "{} has {} microbatches in each window and {} pipes: each window has to give every pipe as "
        "many",
        schedule_.name, schedule_.window_size(), schedule_.num_pipes());
  cut();
  check_edges();
  find_period();
}

Op EndlessSchedule::relative(Op op, int window) const { return absolute(op, -window); }

Op EndlessSchedule::absolute(Op op, int window) const {
  if (has_microbatch(op.kind)) op.microbatch += window * schedule_.window_size();
  if (has_window(op.kind)) op.microbatch += window;
  return op;
}

void EndlessSchedule::cut() {
  const int windows = schedule_.num_windows;
  parts_.assign(static_cast<std::size_t>(windows), Part(schedule_.programs.size()));
  for (std::size_t d = 0; d < schedule_.programs.size(); ++d) {
    const Program& program = schedule_.programs[d];
    std::vector<std::size_t> ends(static_cast<std::size_t>(windows), 0);  // last updates
    for (std::size_t i = 0; i < program.size(); ++i)
      if (program[i].kind == OpKind::Update)
        ends[static_cast<std::size_t>(schedule_.window_of(program[i]))] = i;
    std::size_t part = 0;
    bool updating = false;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Op& op = program[i];
      const bool update = op.kind == OpKind::Update;
      const int window = schedule_.window_of(op), own = static_cast<int>(part);
      const bool counts = has_microbatch(op.kind) || has_window(op.kind);
      // Messages may lie between updates: they need no weights.
      const bool between = updating && (is_compute(op.kind) || op.kind == OpKind::ReduceGrad);
      if (own == windows || (counts && window < own) || (update && window != own) || between)
        throw user_error(
            "{}: device {}: {} lies between the updates of window {} or behind them: run all "
            "updates of a window one after the other, behind all ops of it",
            schedule_.name, d, schedule_.text(op), std::min(window, own));
      updating = updating || update;
      if (counts) ahead_ = std::max(ahead_, window - own);
      parts_[part][d].push_back(relative(op, own));
      if (update && i == ends[part]) {
        ++part;
        updating = false;
      }
    }
  }
}

// Nothing needs an op of a later part: else devices could not reach a joint one by one. Only
// receives may be posted earlier than their sends; they move behind the joint.
void EndlessSchedule::check_edges() {
  PartOf part_of(schedule_);
  for (int w = 0; w < schedule_.num_windows; ++w)
    for (const Program& program : parts_[static_cast<std::size_t>(w)])
      for (const Op& op : program)
        if (has_microbatch(op.kind)) part_of.at(absolute(op, w)) = w;
  for (int w = 0; w < schedule_.num_windows; ++w)
    for (std::size_t d = 0; d < schedule_.programs.size(); ++d) {
      Program kept, early;
      for (const Op& op : parts_[static_cast<std::size_t>(w)][d]) {
        const bool waits = has_microbatch(op.kind) && needs_later(absolute(op, w), w, part_of);
        if (waits) part_of.at(absolute(op, w)) = w + 1;
        (waits ? early : kept).push_back(waits ? absolute(op, -1) : op);
      }
      parts_[static_cast<std::size_t>(w)][d] = std::move(kept);
      if (early.empty()) continue;
      Program& next = parts_[static_cast<std::size_t>(w) + 1][d];
      next.insert(next.begin(), early.begin(), early.end());
    }
}

bool EndlessSchedule::needs_later(const Op& op, int part, const PartOf& part_of) const {
  for (const Op& input : inputs_of(op, schedule_)) {
    if (!has_microbatch(input.kind)) continue;
    int of_input = part_of.at(input);
    if (of_input < 0 && input.kind != OpKind::F) {  // I and W, or B
      Op fused = input;
      fused.kind = OpKind::B;
      of_input = part_of.at(fused);
    }
    if (of_input <= part) continue;
    if (is_recv(op.kind)) return true;
    throw user_error(
        "{}: {} comes before the update of window {} on its device and needs {}, which comes "
        "behind that update on its own: move one of the updates",
        schedule_.name, schedule_.text(op), part, schedule_.text(input));
  }
  return false;
}

void EndlessSchedule::find_period() {
  // What is under way at the joint before a part: ops of later windows, by how many parts earlier.
  const auto state = [&](int joint) {
    std::vector<std::vector<std::pair<int, Op>>> devices(schedule_.programs.size());
    for (int w = std::max(0, joint - ahead_); w < joint; ++w)
      for (std::size_t d = 0; d < devices.size(); ++d)
        for (const Op& op : parts_[static_cast<std::size_t>(w)][d]) {
          const int window = w + schedule_.window_of(op);
          if (window >= joint) devices[d].emplace_back(joint - w, absolute(op, w - joint));
        }
    return devices;
  };
  for (head_ = 0; head_ + 1 < schedule_.num_windows; ++head_) {
    const auto h = static_cast<std::size_t>(head_);
    if (parts_[h] != parts_[h + 1] || state(head_) != state(head_ + 1)) continue;
    parts_.resize(h + 1);
    if (!gives_back(schedule_)) break;
    check_ends();
    return;
  }
  throw user_error(
      "{} has {} windows, of which none repeats: training goes on for any number of steps, so give "
      "it a schedule in which each window is like the one before, from the second or third on, and "
      "a few windows more of it",
      schedule_.name, schedule_.num_windows);
}

// What was repeated is what was given, but for receives and sends, which may lie elsewhere at the
// end.
bool EndlessSchedule::gives_back(const Schedule& given) const {
  const Schedule made = whole(given.num_windows);
  const auto without_messages = [](const Program& program) {
    Program out;
    for (const Op& op : program)
      if (!is_communication(op.kind)) out.push_back(op);
    return out;
  };
  for (std::size_t d = 0; d < given.programs.size(); ++d)
    if (without_messages(made.programs[d]) != without_messages(given.programs[d])) return false;
  return true;
}

// A run ends as the last of these do, however long it is.
void EndlessSchedule::check_ends() const {
  for (int count = 1; count <= head_ + ahead_ + 2; ++count) {
    const Validation validation = validate(whole(count));
    if (!validation.valid())
      throw user_error("{} cannot end after {} windows: {}", schedule_.name, count,
                       validation.problems.front().line());
  }
}

const Program& EndlessSchedule::relative_part(int device, int window) const {
  return parts_[static_cast<std::size_t>(std::min(window, head_))]
               [static_cast<std::size_t>(device)];
}

Program EndlessSchedule::part(int device, int window, int count) const {
  Program out;
  for (const Op& op : relative_part(device, window))
    if (window + schedule_.window_of(op) < count) out.push_back(absolute(op, window));
  return out;
}

std::vector<EndlessSchedule::Early> EndlessSchedule::early(int device, int window,
                                                           int count) const {
  std::vector<Early> out;
  for (int w = std::max(0, window - ahead_); w < window; ++w)
    for (const Op& op : part(device, w, count))
      if (schedule_.window_of(op) >= window) out.push_back({w, op});
  return out;
}

Program EndlessSchedule::under_way(int device, int window, int count) const {
  Program out;
  for (int w = window; w < std::min(window + ahead_, count); ++w)
    for (const Op& op : part(device, w, count)) {
      if (!is_recv(op.kind)) continue;
      Op send = op;
      send.kind = op.kind == OpKind::RecvF ? OpKind::SendF : OpKind::SendB;
      send.stage = partner_stage(op);
      const int sender = schedule_.placement.device_of(op.pipe, send.stage);
      bool sent = false;
      for (int before = std::max(0, window - ahead_); before < window && !sent; ++before) {
        const Program theirs = part(sender, before, count);
        sent = std::find_if(theirs.begin(), theirs.end(), [&](const Op& other) {
                 return other.kind == send.kind && other.stage == send.stage &&
                        other.microbatch == send.microbatch && other.slice == send.slice;
               }) != theirs.end();
      }
      if (sent) out.push_back(op);
    }
  return out;
}

Schedule EndlessSchedule::whole(int count) const {
  Schedule out = schedule_;
  out.num_windows = count;
  out.num_microbatches = count * schedule_.window_size();
  for (std::size_t d = 0; d < out.programs.size(); ++d) {
    out.programs[d].clear();
    for (int window = 0; window < count; ++window)
      for (Op op : part(static_cast<int>(d), window, count)) {
        if (count == 1 && has_window(op.kind)) op.microbatch = -1;  // one window has no number
        out.programs[d].push_back(op);
      }
  }
  return out;
}

}  // namespace sluice
