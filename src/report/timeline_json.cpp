#include "sluice/report/timeline_json.h"

#include <fmt/format.h>

#include "sluice/base/text.h"
#include "sluice/sim/simulate.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

// What `append` writes of each element, on one line.
template <typename List, typename Append>
void append_line(std::string& out, const List& list, Append append) {
  out += "[";
  bool first = true;
  for (const auto& element : list) {
    if (!first) out += ",";
    first = false;
    append(element);
  }
  out += "]";
}

}  // namespace

void add_timeline(JsonObject& object, const Timeline& timeline) {
  const auto& devices = timeline.devices;
  const auto append_span = [&](std::string& out, const auto& span) {
    out += fmt::format("{{\"op\":\"{}\",\"start\":{},\"end\":{}}}", timeline.text(span.op),
                       number(span.start), number(span.end));
  };
  append_rows(object.begin("timeline"), devices.size(), [&](std::string& out, std::size_t d) {
    append_line(out, devices[d].spans, [&](const Span& span) { append_span(out, span); });
  });
  std::string& messages = object.begin("messages");
  append_line(messages, timeline.messages, [&](const Message& message) {
    messages += fmt::format("{{\"op\":\"{}\",\"from\":{},\"to\":{},\"start\":{},\"end\":{}}}",
                            timeline.text(message.op), message.from, message.to,
                            number(message.start), number(message.end));
  });
  if (has_reductions(timeline))
    append_rows(object.begin("reductions"), devices.size(), [&](std::string& out, std::size_t d) {
      append_line(out, devices[d].reductions, [&](const auto& span) { append_span(out, span); });
    });
  append_rows(object.begin("memory"), devices.size(), [&](std::string& out, std::size_t d) {
    append_line(out, devices[d].memory, [&](const auto& point) {
      out += fmt::format("[{},{}]", number(point.time), number(point.value));
    });
  });
  std::string& path = object.begin("critical_path");
  append_line(path, critical_path(timeline), [&](const CriticalStep& step) {
    const Span& span =
        devices[static_cast<std::size_t>(step.device)].spans[static_cast<std::size_t>(step.span)];
    path += fmt::format("{{\"device\":{},\"op\":\"{}\",\"start\":{},\"end\":{}}}", step.device,
                        timeline.text(span.op), number(span.start), number(span.end));
  });
}

}  // namespace sluice
