#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/schedule.h"
#include "sluice/trace/render.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxSpans = 1'000'000;   // some 700 MB with their messages and memory
constexpr double kMicrosecondsPerUnit = 1000;  // of a timeline without seconds

// Slices of one track must not overlap. Gives each [start, end) the first free track; starts must
// ascend.
class Tracks {
 public:
  std::size_t place(double start, double end) {
    std::size_t track = 0;
    while (track < free_.size() && free_[track] > start)
      ++track;
    if (track == free_.size()) free_.push_back(0);
    free_[track] = end;
    return track;
  }
  std::size_t count() const { return free_.size(); }

 private:
  std::vector<double> free_;
};

// One end of a message, on the track of the device that sends or receives it.
struct MessageEnd {
  const Message* message = nullptr;
  std::size_t id = 0;
  std::size_t track = 0;
};

struct DeviceTracks {
  std::vector<std::size_t> compute;  // track of each span
  std::vector<MessageEnd> sends;
  std::vector<MessageEnd> receives;
  std::size_t num_compute = 1;
  std::size_t num_send = 0;
  std::size_t num_receive = 0;
  std::vector<std::size_t> reduce;  // track of each reduction
  std::size_t num_reduce = 0;
};

std::size_t place(std::vector<MessageEnd>& ends) {
  std::stable_sort(ends.begin(), ends.end(), [](const MessageEnd& a, const MessageEnd& b) {
    return a.message->start < b.message->start;
  });
  Tracks tracks;
  for (MessageEnd& end : ends)
    end.track = tracks.place(end.message->start, end.message->end);
  return tracks.count();
}

std::vector<DeviceTracks> place_all(const Timeline& timeline) {
  std::vector<DeviceTracks> devices(timeline.devices.size());
  for (std::size_t i = 0; i < timeline.messages.size(); ++i) {
    const Message& message = timeline.messages[i];
    devices[static_cast<std::size_t>(message.from)].sends.push_back({&message, i, 0});
    devices[static_cast<std::size_t>(message.to)].receives.push_back({&message, i, 0});
  }
  for (std::size_t d = 0; d < devices.size(); ++d) {
    Tracks compute;
    for (const Span& span : timeline.devices[d].spans)
      devices[d].compute.push_back(compute.place(span.start, span.end));
    devices[d].num_compute = std::max<std::size_t>(1, compute.count());
    devices[d].num_send = place(devices[d].sends);
    devices[d].num_receive = place(devices[d].receives);
    Tracks reduce;
    for (const Reduction& reduction : timeline.devices[d].reductions)
      devices[d].reduce.push_back(reduce.place(reduction.start, reduction.end));
    devices[d].num_reduce = reduce.count();
  }
  return devices;
}

// The RECV that meets a SEND.
Op received(Op op) {
  op.stage = partner_stage(op);
  op.kind = op.kind == OpKind::SendF ? OpKind::RecvF : OpKind::RecvB;
  return op;
}

class Writer {
 public:
  explicit Writer(const Timeline& timeline)
      : timeline_(timeline),
        microseconds_(timeline.seconds ? 1e6 : kMicrosecondsPerUnit),
        memory_name_(timeline.bytes ? "bytes" : "stage-activations") {
    out_ = fmt::format(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"schedule\":{},\"caption\":{},"
        "\"time\":{}}},\n\"traceEvents\":[",
        json_quote(timeline.name), json_quote(timeline.caption),
        json_quote(timeline.seconds ? "microseconds"
                                    : fmt::format("1 unit = {} us", number(kMicrosecondsPerUnit))));
  }

  // Devices in order. Each is a process of its own, or all of a group are one.
  void device(std::size_t index, const DeviceTracks& tracks) {
    const DeviceTimeline& device = timeline_.devices[index];
    const bool grouped = !device.group.empty();
    if (!grouped || index == 0 || timeline_.devices[index - 1].group != device.group) {
      const std::size_t pid = processes_++;
      next_track_ = 1;
      name("process_name", pid, 0, grouped ? device.group : timeline_.device_name(index));
      event(
          "{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{0},\"args\":{{\"sort_index\":"
          "{0}}}}}",
          pid);
    }
    const std::size_t pid = processes_ - 1;
    const std::size_t compute = next_track_;
    const std::size_t send = compute + tracks.num_compute;
    const std::size_t receive = send + tracks.num_send;
    const std::size_t reduce = receive + tracks.num_receive;
    next_track_ = reduce + tracks.num_reduce;
    const std::string of =
        grouped ? fmt::format("device {} ", timeline_.number_in_group(index)) : "";
    name_tracks(pid, compute, tracks.num_compute, of + "compute");
    name_tracks(pid, send, tracks.num_send, of + "send");
    name_tracks(pid, receive, tracks.num_receive, of + "receive");
    name_tracks(pid, reduce, tracks.num_reduce, of + "reduce");

    for (std::size_t i = 0; i < device.spans.size(); ++i)
      slice("compute", pid, compute + tracks.compute[i], device.spans[i]);
    for (const MessageEnd& end : tracks.sends) {
      const Message& m = *end.message;
      slice("send", pid, send + end.track, {m.op, m.start, m.end});
      flow("\"ph\":\"s\"", end.id, pid, send + end.track, m.start);
    }
    for (const MessageEnd& end : tracks.receives) {
      const Message& m = *end.message;
      slice("receive", pid, receive + end.track, {received(m.op), m.start, m.end});
      // Inside the slice, not on its edge, so that the arrow ends at it and not at the next one.
      flow("\"ph\":\"f\",\"bp\":\"e\"", end.id, pid, receive + end.track, (m.start + m.end) / 2);
    }
    for (std::size_t i = 0; i < device.reductions.size(); ++i) {
      const Reduction& r = device.reductions[i];
      slice("reduce", pid, reduce + tracks.reduce[i], {r.op, r.start, r.end});
    }
    for (const MemoryPoint& point : device.memory)
      event("{{\"ph\":\"C\",\"name\":{},\"pid\":{},\"ts\":{},\"args\":{{\"{}\":{}}}}}",
            json_quote(of + "memory"), pid, time(point.time), memory_name_, number(point.value));
  }

  std::string finish() { return std::move(out_) + "\n]}\n"; }

 private:
  template <typename... Args>
  void event(fmt::format_string<Args...> text, Args&&... args) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  std::string time(double t) const { return number(t * microseconds_); }

  void name(std::string_view what, std::size_t pid, std::size_t tid, const std::string& text) {
    event("{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", what,
          pid, tid, json_quote(text));
  }

  void name_tracks(std::size_t pid, std::size_t first, std::size_t count, std::string_view what) {
    for (std::size_t i = 0; i < count; ++i) {
      name("thread_name", pid, first + i,
           count > 1 ? fmt::format("{} {}", what, i + 1) : std::string(what));
      event(
          "{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{},\"tid\":{},\"args\":{{"
          "\"sort_index\":{}}}}}",
          pid, first + i, first + i);
    }
  }

  void slice(std::string_view category, std::size_t pid, std::size_t tid, const Span& span) {
    const Op& op = span.op;
    std::string args = fmt::format("\"kind\":\"{}\",\"stage\":{}", kind_words(op.kind), op.stage);
    if (op.microbatch >= 0) args += fmt::format(",\"microbatch\":{}", op.microbatch);
    if (timeline_.num_slices > 1) args += fmt::format(",\"slice\":{}", op.slice);
    if (timeline_.num_pipes > 1) args += fmt::format(",\"pipe\":{}", static_cast<int>(op.pipe));
    if (op.joined) args += ",\"joined\":true";
    event(
        "{{\"ph\":\"X\",\"name\":\"{}\",\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},"
        "\"args\":{{{}}}}}",
        timeline_.text(op), category, pid, tid, time(span.start), time(span.end - span.start),
        args);
  }

  void flow(std::string_view phase, std::size_t id, std::size_t pid, std::size_t tid, double at) {
    event(
        "{{{},\"name\":\"message\",\"cat\":\"message\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{}}}",
        phase, id, pid, tid, time(at));
  }

  const Timeline& timeline_;
  double microseconds_;
  std::string_view memory_name_;
  std::string out_;
  bool first_ = true;
  std::size_t processes_ = 0;
  std::size_t next_track_ = 1;  // of the latest process
};

}  // namespace

std::string render_chrome(const Timeline& timeline) {
  if (num_spans(timeline) > kMaxSpans)
    throw user_error(
        "`format` is chrome: a trace of {} ops is too large to open, {} are the most; use fewer "
        "microbatches, or `format` html",
        num_spans(timeline), kMaxSpans);
  Writer writer(timeline);
  const std::vector<DeviceTracks> tracks = place_all(timeline);
  for (std::size_t d = 0; d < tracks.size(); ++d)
    writer.device(d, tracks[d]);
  return writer.finish();
}

}  // namespace sluice
