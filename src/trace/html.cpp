#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "sluice/base/text.h"
#include "sluice/trace/page.h"
#include "sluice/trace/render.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

// What a browser draws and holds without effort.
constexpr std::size_t kMaxSpans = 1'000'000;
constexpr std::size_t kMaxMessages = 500'000;

constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
static_assert(kNumOpKinds <= 36);

// JSON inside a script element: no '<' means no way out of it.
std::string quote(std::string_view text) {
  std::string out;
  for (const char c : json_quote(text)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

template <typename Items, typename Value>
void array(std::string& out, std::string_view key, const Items& items, Value value) {
  out += fmt::format(",\"{}\":[", key);
  bool first = true;
  for (const auto& item : items) {
    if (!std::exchange(first, false)) out += ',';
    out += value(item);
  }
  out += ']';
}

std::string whole(std::int64_t value) { return fmt::format_int(value).str(); }

std::string unit_json(const Unit& unit) {
  return fmt::format("[{},{}]", number(unit.size), quote(unit.name));
}

std::string kinds_json(const Timeline& timeline, const std::vector<OpKind>& kinds) {
  const int shades = num_shades(timeline);
  std::string out;
  for (const OpKind kind : kinds) {
    std::vector<std::string> colours, inks;
    for (int shade = 0; shade < shades; ++shade) {
      const Rgb colour = kind_colour(kind, shade, shades);
      colours.push_back('"' + hex(colour) + '"');
      inks.push_back('"' + hex(readable_on(colour)) + '"');
    }
    out += fmt::format("{}{{\"name\":{},\"words\":{},\"colours\":[{}],\"inks\":[{}]}}",
                       out.empty() ? "" : ",", quote(kind_name(kind)), quote(kind_words(kind)),
                       join(colours, ","), join(inks, ","));
  }
  return out;
}

std::size_t num_starting_before(const DeviceTimeline& device, double time) {
  const auto end = std::partition_point(device.spans.begin(), device.spans.end(),
                                        [time](const Span& span) { return span.start < time; });
  return static_cast<std::size_t>(end - device.spans.begin());
}

// A time before which at most kMaxSpans spans start: beyond the end where they all fit.
double last_time_shown(const Timeline& timeline) {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  if (num_spans(timeline) <= kMaxSpans) return high;
  high = timeline.makespan;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    std::size_t count = 0;
    for (const DeviceTimeline& device : timeline.devices)
      count += num_starting_before(device, middle);
    (count <= kMaxSpans ? low : high) = middle;
  }
  return low;
}

// The spans that start before `until`, and the memory up to then.
std::string device_json(const Timeline& timeline, std::size_t index,
                        const std::vector<OpKind>& kinds, double until) {
  const DeviceTimeline& device = timeline.devices[index];
  const std::span<const Span> spans(device.spans.data(), num_starting_before(device, until));
  const auto memory_end =
      std::partition_point(device.memory.begin(), device.memory.end(),
                           [until](const MemoryPoint& point) { return point.time < until; });
  const std::span<const MemoryPoint> memory(device.memory.begin(), memory_end);
  std::string letters;
  std::vector<std::size_t> joined;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto kind = std::find(kinds.begin(), kinds.end(), spans[i].op.kind) - kinds.begin();
    letters += kDigits[static_cast<std::size_t>(kind)];
    if (i > 0 && spans[i].op.joined) joined.push_back(i);
  }

  std::string out = fmt::format("{{\"name\":{},\"peak\":{},\"idle\":{},\"kinds\":\"{}\"",
                                quote(timeline.device_name(index)), number(device.peak),
                                number(idle_share(timeline, index)), letters);
  array(out, "times", spans, [](const Span& s) { return number(s.start) + ',' + number(s.end); });
  array(out, "stages", spans, [](const Span& s) { return whole(s.op.stage); });
  array(out, "microbatches", spans, [](const Span& s) { return whole(s.op.microbatch); });
  if (timeline.num_slices > 1)
    array(out, "slices", spans, [](const Span& s) { return whole(s.op.slice); });
  array(out, "joined", joined, [](std::size_t i) { return whole(static_cast<std::int64_t>(i)); });
  if (!device.reductions.empty())
    array(out, "reductions", device.reductions, [](const Reduction& r) {
      return whole(r.op.stage) + ',' + number(r.start) + ',' + number(r.end);
    });
  array(out, "memory", memory,
        [](const MemoryPoint& p) { return number(p.time) + ',' + number(p.value); });
  return out + '}';
}

std::string data_json(const Timeline& timeline) {
  const std::vector<OpKind> kinds = kinds_in(timeline);
  const std::size_t total = num_spans(timeline);
  const double until = last_time_shown(timeline);
  const bool messages = timeline.messages.size() <= kMaxMessages && total <= kMaxSpans;
  std::string note;
  if (total > kMaxSpans) {
    std::size_t shown = 0;
    for (const DeviceTimeline& device : timeline.devices)
      shown += num_starting_before(device, until);
    note = fmt::format(
        "This run has {} ops, more than a browser can hold: the first {}, up to time {}, are "
        "shown. "
        "Bubble and peak are of the whole run.",
        total, shown, with_unit(until, time_unit(timeline)));
  }
  if (!messages && !timeline.messages.empty())
    note += fmt::format("{}Its {} messages are left out.", note.empty() ? "" : " ",
                        timeline.messages.size());

  const int shades = num_shades(timeline);
  std::string out = fmt::format(
      "{{\"name\":{},\"caption\":{},\"note\":{},\"shades\":{},\"makespan\":{},\"timeUnit\":{},"
      "\"memoryUnit\":{},\"numStages\":{},\"numSlices\":{},\"numPipes\":{},\"numChunks\":{},"
      "\"kinds\":[{}],\n\"devices\":[",
      quote(timeline.name), quote(timeline.caption), quote(note),
      quote(shades > 1 ? fmt::format("deep: {}, light: {}", shade_words(timeline, 0),
                                     shade_words(timeline, shades - 1))
                       : ""),
      number(timeline.makespan), unit_json(time_unit(timeline)), unit_json(memory_unit(timeline)),
      std::max(1, timeline.num_stages), timeline.num_slices, std::max(1, timeline.num_pipes),
      num_chunks(timeline), kinds_json(timeline, kinds));
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    if (d > 0) out += ",\n";
    out += device_json(timeline, d, kinds, until);
  }
  out += ']';
  array(out, "messages", messages ? timeline.messages : std::vector<Message>{},
        [](const Message& m) {
          return fmt::format("{},{},{},{},{},{},{},{}", m.from, m.to, number(m.start),
                             number(m.end), m.op.kind == OpKind::SendF ? 0 : 1, m.op.stage,
                             m.op.microbatch, m.op.slice);
        });
  return out + "}\n";
}

// Replaces each {{key}} once, never looking inside what it put in.
std::string fill(std::string_view page,
                 const std::function<std::string(std::string_view key)>& value) {
  std::string out;
  for (;;) {
    const auto open = page.find("{{");
    out += page.substr(0, open);
    if (open == std::string_view::npos) return out;
    const auto close = page.find("}}", open);
    out += value(page.substr(open + 2, close - open - 2));
    page.remove_prefix(close + 2);
  }
}

}  // namespace

std::string render_html(const Timeline& timeline) {
  return fill(page::kHtml, [&](std::string_view key) -> std::string {
    if (key == "title") return escape_xml(timeline.name) + " - schedule";
    if (key == "style") return std::string(page::kStyle);
    if (key == "script") return std::string(page::kScript);
    return data_json(timeline);
  });
}

}  // namespace sluice
