#include "trace/sample_timeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice::testing {
namespace {

OpKind kind_of(char letter) {
  switch (letter) {
    case 'F': return OpKind::F;
    case 'I': return OpKind::I;
    case 'W': return OpKind::W;
    case 'B': return OpKind::B;
    default: break;
  }
  SLUICE_CHECK(false, "letter {}", letter);
}

double duration(OpKind kind, const SampleTimes& times) {
  switch (kind) {
    case OpKind::F: return times.f;
    case OpKind::I: return times.i;
    case OpKind::W: return times.w;
    default: return times.i + times.w;
  }
}

}  // namespace

Schedule schedule_from_letters(std::string name, Placement placement, int num_slices,
                               const std::vector<std::string_view>& rows) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.placement = std::move(placement);
  schedule.num_slices = num_slices;
  for (std::size_t d = 0; d < rows.size(); ++d) {
    std::map<char, int> seen;
    Program program;
    for (const char c : rows[d]) {
      const bool second = c >= 'a';
      Op op;
      op.kind = kind_of(second ? static_cast<char>(c - 'a' + 'A') : c);
      op.stage = schedule.placement.stages_of(static_cast<int>(d))[second ? 1 : 0];
      const int unit = seen[c]++;
      const int slice = unit % num_slices;
      op.microbatch = unit / num_slices;
      op.slice = static_cast<std::uint16_t>(op.kind == OpKind::F ? slice : num_slices - 1 - slice);
      schedule.num_microbatches = std::max(schedule.num_microbatches, op.microbatch + 1);
      program.push_back(op);
    }
    schedule.programs.push_back(std::move(program));
  }
  return schedule;
}

Timeline play(const Schedule& schedule, const SampleTimes& times) {
  Timeline timeline;
  timeline.name = schedule.name;
  timeline.num_stages = schedule.num_stages();
  timeline.num_stages_per_device = schedule.placement.stages_per_device();
  timeline.num_slices = schedule.num_slices;
  timeline.num_pipes = schedule.num_pipes();
  timeline.devices.resize(schedule.programs.size());

  // Ends of F and of I (or B) by cell; below zero: not yet.
  std::array<std::vector<double>, 2> ends;
  ends.fill(std::vector<double>(schedule.num_cells(), -1));
  std::vector<double> free(schedule.programs.size());
  std::vector<std::size_t> next(schedule.programs.size());
  for (bool progress = true; std::exchange(progress, false);) {
    for (std::size_t d = 0; d < schedule.programs.size(); ++d) {
      while (next[d] < schedule.programs[d].size()) {
        const Op& op = schedule.programs[d][next[d]];
        double start = free[d];
        bool ready = true;
        std::vector<Message> messages;
        for (const Op& input : inputs_of(op, schedule)) {
          const bool forward = input.kind == OpKind::F;
          const double end = ends[forward ? 0 : 1][schedule.cell(input)];
          const int from = schedule.device_of(input);
          const bool far = from != static_cast<int>(d);
          ready = ready && end >= 0;
          start = std::max(start, end + (far ? times.comm : 0));
          if (!far) continue;
          Op send = input;
          send.kind = forward ? OpKind::SendF : OpKind::SendB;
          messages.push_back({.op = send,
                              .from = from,
                              .to = static_cast<int>(d),
                              .start = end,
                              .end = end + times.comm});
        }
        if (!ready) break;
        DeviceTimeline& device = timeline.devices[d];
        const double end = start + duration(op.kind, times) * schedule.slice_share(op.slice);
        device.spans.push_back({.op = op, .start = start, .end = end});
        device.busy += end - start;
        timeline.messages.insert(timeline.messages.end(), messages.begin(), messages.end());
        timeline.makespan = std::max(timeline.makespan, end);
        if (op.kind == OpKind::F) ends[0][schedule.cell(op)] = end;
        if (gives_input_gradient(op.kind)) ends[1][schedule.cell(op)] = end;
        free[d] = end;
        ++next[d];
        progress = true;
      }
    }
  }

  double peak = 0;
  for (DeviceTimeline& device : timeline.devices) {
    double held = 0;
    for (const Span& span : device.spans) {
      const double share = schedule.slice_share(span.op.slice);
      if (span.op.kind == OpKind::F) {
        held += share;
        device.memory.push_back({span.start, held});
      } else if (gives_weight_gradient(span.op.kind)) {
        held -= share;
        device.memory.push_back({span.end, held});
      }
      device.peak = std::max(device.peak, held);
    }
    peak = std::max(peak, device.peak);
  }
  timeline.caption =
      fmt::format("{} devices, {} microbatches: makespan {}, peak {}", schedule.num_devices(),
                  schedule.num_microbatches, number(timeline.makespan), number(peak));
  return timeline;
}

Timeline v_half_sample() {
  return play(schedule_from_letters("v-half", Placement::vee(4, 2), 1,
                                    {"FFFFFfiwfiwfIiwfWFIiwfWFIiwfWFIiwfiwIWWfiIwIWWIW",
                                     "FFFFffiwfiwIWFfiwIWFfiwIWFfiwIFWfiwIiwfWIiIwWWIW",
                                     "FFFfffiwFiIwWfFIiwfWFIiwfWFIiwfWFIiwfiIwIiwWIWWW",
                                     "FfFfFfiwIWFfiwIWFfiwIWFfiwIFWfiIwFWfiIiIwwiIwWWW"}),
              {});
}

Timeline tiny_sample() {
  return play(schedule_from_letters("1f1b", Placement::linear(2), 1, {"FFBB", "FBFB"}),
              {1, 1, 1, .5});
}

Timeline sliced_sample() {
  return play(schedule_from_letters("seq1f1b", Placement::linear(2), 2, {"FFFBFBBB", "FFBFBFBB"}),
              {});
}

Timeline joined_sample() {
  Timeline timeline =
      play(schedule_from_letters("overlap", Placement::vee(2, 2), 1, {"FFfbfBbB", "FfbFBfbB"}), {});
  // The first F that follows a B of the other chunk runs at the same time as it.
  auto& spans = timeline.devices[1].spans;
  spans[3].op.joined = 1;
  spans[3].start = spans[2].start;
  spans[3].end = spans[2].end;
  return timeline;
}

Timeline one_f_one_b_sample(int num_devices, int num_microbatches) {
  std::vector<std::string> rows;
  for (int d = 0; d < num_devices; ++d) {
    const int warm_up = std::min(num_microbatches, num_devices - d);
    std::string row(static_cast<std::size_t>(warm_up), 'F');
    for (int m = warm_up; m < num_microbatches; ++m)
      row += "BF";
    rows.push_back(row + std::string(static_cast<std::size_t>(warm_up), 'B'));
  }
  return play(
      schedule_from_letters("1f1b", Placement::linear(num_devices), 1, {rows.begin(), rows.end()}),
      {});
}

}  // namespace sluice::testing
