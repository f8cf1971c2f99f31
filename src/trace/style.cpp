#include "sluice/trace/style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sluice/base/text.h"

namespace sluice {
namespace {

// The pairs differ in lightness as well as in hue, so that they stay apart under all three kinds
// of colour blindness and in grey.
struct KindColour {
  Rgb deep;
  Rgb light;
};

KindColour colours_of(OpKind kind) {
  switch (kind) {
    case OpKind::F:
    case OpKind::SendF:
    case OpKind::RecvF: return {{42, 86, 168}, {157, 185, 240}};
    case OpKind::I:
    case OpKind::SendB:
    case OpKind::RecvB: return {{31, 160, 143}, {155, 229, 208}};
    case OpKind::W: return {{185, 200, 50}, {233, 240, 168}};
    case OpKind::B: return {{207, 74, 18}, {247, 166, 115}};
    case OpKind::ReduceGrad:
    case OpKind::Update:
    case OpKind::Unshard:
    case OpKind::Reshard: return {{122, 127, 135}, {196, 200, 206}};
  }
  return {};
}

double luminance(Rgb colour) {
  const auto linear = [](std::uint8_t channel) {
    const double c = channel / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(colour.r) + 0.7152 * linear(colour.g) + 0.0722 * linear(colour.b);
}

}  // namespace

std::string hex(Rgb colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.r, colour.g, colour.b);
}

Rgb mix(Rgb from, Rgb to, double share) {
  const auto channel = [share](std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(std::lround(a + (b - a) * share));
  };
  return {channel(from.r, to.r), channel(from.g, to.g), channel(from.b, to.b)};
}

Rgb readable_on(Rgb background) {
  const double l = luminance(background);
  const double on_white = 1.05 / (l + 0.05);
  const double on_ink = (l + 0.05) / (luminance(kInk) + 0.05);
  return on_white > on_ink ? kWhite : kInk;
}

Rgb kind_colour(OpKind kind, int shade, int num_shades) {
  const auto [deep, light] = colours_of(kind);
  return num_shades < 2 ? deep : mix(deep, light, static_cast<double>(shade) / (num_shades - 1));
}

std::string_view kind_words(OpKind kind) {
  switch (kind) {
    case OpKind::F: return "forward";
    case OpKind::I: return "input gradient";
    case OpKind::W: return "weight gradient";
    case OpKind::B: return "backward";
    case OpKind::SendF: return "send activation";
    case OpKind::RecvF: return "receive activation";
    case OpKind::SendB: return "send gradient";
    case OpKind::RecvB: return "receive gradient";
    case OpKind::ReduceGrad: return "reduce gradients";
    case OpKind::Update: return "update weights";
    case OpKind::Unshard: return "unshard weights";
    case OpKind::Reshard: return "reshard weights";
  }
  return "?";
}

int num_chunks(const Timeline& timeline) {
  return std::max(1, timeline.num_stages_per_device / std::max(1, timeline.num_pipes));
}

int num_shades(const Timeline& timeline) {
  return num_chunks(timeline) * std::max(1, timeline.num_pipes);
}

int shade_of(const Timeline& timeline, const Op& op) {
  const std::int64_t chunks = num_chunks(timeline);
  const auto chunk = static_cast<int>(op.stage * chunks / std::max(1, timeline.num_stages));
  const int pipes = std::max(1, timeline.num_pipes);
  return std::clamp(chunk * pipes + op.pipe % pipes, 0, num_shades(timeline) - 1);
}

std::string shade_words(const Timeline& timeline, int shade) {
  const int pipes = std::max(1, timeline.num_pipes);
  const std::string chunk = fmt::format("chunk {}", shade / pipes);
  const std::string pipe = fmt::format("pipe {}", shade % pipes);
  if (num_chunks(timeline) > 1) return pipes > 1 ? chunk + ", " + pipe : chunk;
  return pipes > 1 ? pipe : "";
}

std::vector<OpKind> kinds_in(const Timeline& timeline) {
  std::array<bool, kNumOpKinds> seen = {};
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans)
      seen[static_cast<std::size_t>(span.op.kind)] = true;
  if (has_reductions(timeline)) seen[static_cast<std::size_t>(OpKind::ReduceGrad)] = true;
  std::vector<OpKind> kinds;
  for (std::size_t k = 0; k < seen.size(); ++k)
    if (seen[k]) kinds.push_back(static_cast<OpKind>(k));
  return kinds;
}

double shortest_span(const Timeline& timeline) {
  double shortest = 0;
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans) {
      const double duration = span.end - span.start;
      if (duration > timeline.makespan * 1e-9 && (shortest == 0 || duration < shortest))
        shortest = duration;
    }
  return shortest > 0 ? shortest : 1;
}

double median_span(const Timeline& timeline) {
  std::vector<double> durations;
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans)
      if (span.end - span.start > timeline.makespan * 1e-9)
        durations.push_back(span.end - span.start);
  if (durations.empty()) return 1;
  const auto middle = durations.begin() + static_cast<std::ptrdiff_t>(durations.size() / 2);
  std::nth_element(durations.begin(), middle, durations.end());
  return *middle;
}

std::size_t num_spans(const Timeline& timeline) {
  std::size_t count = 0;
  for (const DeviceTimeline& device : timeline.devices)
    count += device.spans.size();
  return count;
}

int max_microbatch(const Timeline& timeline) {
  int most = 0;
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans)
      most = std::max(most, span.op.microbatch);
  return most;
}

double max_peak(const Timeline& timeline) {
  double most = 0;
  for (const DeviceTimeline& device : timeline.devices)
    most = std::max(most, device.peak);
  return most;
}

bool has_reductions(const Timeline& timeline) {
  return std::any_of(timeline.devices.begin(), timeline.devices.end(),
                     [](const DeviceTimeline& device) { return !device.reductions.empty(); });
}

std::vector<SpanGroup> joined_groups(const DeviceTimeline& device) {
  std::vector<SpanGroup> groups;
  for (std::size_t i = 1; i < device.spans.size(); ++i) {
    if (!device.spans[i].op.joined) continue;
    if (!groups.empty() && groups.back().last == i - 1)
      groups.back().last = i;
    else
      groups.push_back({i - 1, i});
  }
  return groups;
}

double idle_share(const Timeline& timeline, std::size_t device) {
  const std::string& group = timeline.devices[device].group;
  double makespan = group.empty() ? timeline.makespan : 0;
  for (const DeviceTimeline& other : timeline.devices) {
    if (group.empty() || other.group != group) continue;
    for (const Span& span : other.spans)
      makespan = std::max(makespan, span.end);
    for (const Reduction& reduction : other.reductions)
      makespan = std::max(makespan, reduction.end);
  }
  return makespan > 0 ? std::max(0.0, 1 - timeline.devices[device].busy / makespan) : 0;
}

Unit time_unit(const Timeline& timeline) {
  if (!timeline.seconds) return {};
  if (timeline.makespan < 1e-3) return {1e-6, "us"};
  if (timeline.makespan < 1) return {1e-3, "ms"};
  return {1, "s"};
}

Unit memory_unit(const Timeline& timeline) {
  if (!timeline.bytes) return {};
  const double most = max_peak(timeline);
  if (most >= 1024.0 * 1024 * 1024) return {1024.0 * 1024 * 1024, "GiB"};
  if (most >= 1024.0 * 1024) return {1024.0 * 1024, "MiB"};
  if (most >= 1024) return {1024, "KiB"};
  return {1, "B"};
}

std::string tidy(double value) {
  if (value == 0 || !std::isfinite(value)) return "0";
  const double digits = std::pow(10, 3 - std::floor(std::log10(std::abs(value))));
  return number(std::abs(value) >= 1000 ? std::round(value) : std::round(value * digits) / digits);
}

std::string with_unit(double value, const Unit& unit) {
  const std::string text = tidy(value / unit.size);
  return unit.name.empty() ? text : fmt::format("{} {}", text, unit.name);
}

std::string percent(double share) { return fmt::format("{:.1f}%", share * 100); }

double nice_step(double least) {
  if (!(least > 0) || !std::isfinite(least)) return 1;
  const double decade = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * decade >= least * (1 - 1e-9)) return factor * decade;
  return 10 * decade;
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      case '\n':
      case '\r':
      case '\t': out += ' '; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

}  // namespace sluice
