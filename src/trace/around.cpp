#include "sluice/trace/around.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace sluice {
namespace {

constexpr int kMaxRanks = 16;
constexpr int kMaxUnits = 9;  // each way
constexpr int kMaxWidth = 100;

// The times at which one (stage, microbatch, slice) has its output and its input gradient; -1: not
// yet.
struct Ready {
  int output = -1;
  int gradient = -1;
};

// The compute op whose input a receive brings, or whose result a send takes away.
bool serves(const Op& message, const Op& compute) {
  const bool forward = message.kind == OpKind::SendF || message.kind == OpKind::RecvF;
  return compute.stage == message.stage && compute.microbatch == message.microbatch &&
         compute.slice == message.slice &&
         (forward ? compute.kind == OpKind::F : gives_input_gradient(compute.kind));
}

// The position of the compute op to mark; the program's size: none.
std::size_t marked(const Program& program, std::size_t position) {
  if (position >= program.size() || is_compute(program[position].kind)) return position;
  const auto found = std::find_if(program.begin(), program.end(), [&](const Op& op) {
    return is_communication(program[position].kind) && serves(program[position], op);
  });
  return static_cast<std::size_t>(found - program.begin());
}

}  // namespace

std::vector<std::vector<int>> unit_times(const Schedule& schedule) {
  const std::size_t num_devices = schedule.programs.size();
  std::vector<std::vector<int>> times(num_devices);
  std::vector<Ready> ready(schedule.num_cells());
  std::vector<int> free(num_devices, 0);
  // When the inputs of an op are there: -1 for not yet.
  const auto inputs_ready = [&](const Op& op) {
    int latest = 0;
    for (const Op& input : inputs_of(op, schedule)) {
      if (has_window(input.kind)) continue;  // made here
      const Ready& made = ready[schedule.cell(input)];
      const int time = input.kind == OpKind::F ? made.output : made.gradient;
      if (time < 0) return -1;
      latest = std::max(latest, time);
    }
    return latest;
  };
  for (bool advanced = true; advanced;) {
    advanced = false;
    for (std::size_t d = 0; d < num_devices; ++d) {
      const Program& program = schedule.programs[d];
      while (times[d].size() < program.size()) {
        const Op& op = program[times[d].size()];
        if (is_compute(op.kind)) {
          const int inputs = inputs_ready(op);
          if (inputs < 0) break;
          times[d].push_back(std::max(free[d], inputs));
          free[d] = times[d].back() + 1;
          Ready& made = ready[schedule.cell(op)];
          if (op.kind == OpKind::F) made.output = free[d];
          if (gives_input_gradient(op.kind)) made.gradient = free[d];
        } else {
          times[d].push_back(free[d]);
        }
        advanced = true;
      }
    }
  }
  for (std::size_t d = 0; d < num_devices; ++d)
    times[d].resize(schedule.programs[d].size(), -1);
  return times;
}

std::string grid_around(const Schedule& schedule, int rank, std::size_t position) {
  const std::vector<std::vector<int>> times = unit_times(schedule);
  const Program& own = schedule.programs[static_cast<std::size_t>(rank)];
  const std::vector<int>& own_times = times[static_cast<std::size_t>(rank)];
  const std::size_t mark = marked(own, position);
  const std::size_t last = own.empty() ? 0 : own.size() - 1;
  const int middle =
      own.empty() ? 0 : own_times[std::min(mark < own.size() ? mark : position, last)];

  const int num_ranks = schedule.num_devices();
  const int first = std::clamp(rank - kMaxRanks / 2, 0, std::max(0, num_ranks - kMaxRanks));
  const int end = std::min(num_ranks, first + kMaxRanks);
  const std::size_t num_columns = 2 * kMaxUnits + 1;
  std::vector<std::vector<std::string>> rows;
  std::size_t width = 0;
  for (int r = first; r < end; ++r) {
    const Program& program = schedule.programs[static_cast<std::size_t>(r)];
    std::vector<std::string>& cells = rows.emplace_back(num_columns);
    for (std::size_t i = 0; i < program.size(); ++i) {
      const int time = times[static_cast<std::size_t>(r)][i];
      if (!is_compute(program[i].kind) || time < 0 || std::abs(time - middle) > kMaxUnits) continue;
      std::string& cell = cells[static_cast<std::size_t>(time - middle + kMaxUnits)];
      const std::string text = schedule.text(program[i]);
      cell = r == rank && i == mark ? '[' + text + ']' : ' ' + text + ' ';
      width = std::max(width, cell.size());
    }
  }

  // As many units each way as fit, without those in which nothing runs at either end.
  const std::size_t gutter = fmt::formatted_size("rank {} ", end - 1);
  const std::size_t room = (kMaxWidth - gutter) / std::max<std::size_t>(1, width);
  const std::size_t units = std::clamp<std::size_t>((room - 1) / 2, 1, kMaxUnits);
  std::size_t begin_column = kMaxUnits - units, end_column = kMaxUnits + units + 1;
  const auto idle = [&](std::size_t column) {
    return std::all_of(rows.begin(), rows.end(),
                       [&](const auto& row) { return row[column].empty(); });
  };
  while (begin_column < kMaxUnits && idle(begin_column))
    ++begin_column;
  while (end_column > kMaxUnits + 1 && idle(end_column - 1))
    --end_column;

  std::string out;
  for (int r = first; r < end; ++r) {
    std::string line = fmt::format("{:<{}}", fmt::format("rank {}", r), gutter);
    for (std::size_t c = begin_column; c < end_column; ++c) {
      const std::string& cell = rows[static_cast<std::size_t>(r - first)][c];
      line += fmt::format("{:<{}}", cell.empty() ? " ." : cell, width);
    }
    out += (r > first ? "\n" : "") + line.substr(0, line.find_last_not_of(' ') + 1);
  }
  return out;
}

}  // namespace sluice
