#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "sluice/base/text.h"
#include "sluice/trace/render.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxRows = 1024;
constexpr std::size_t kMaxBoxes = 200'000;    // beyond: averages instead of boxes
constexpr std::size_t kMaxLabelled = 20'000;  // beyond: no labels and no hover titles
constexpr double kMinPlot = 560;
constexpr double kMaxPlot = 1800;
constexpr double kMargin = 24;
constexpr double kGroupGap = 16;
constexpr double kDigit = 0.58;  // width of a digit, in font sizes

// Two decimals of a pixel are enough for any screen or page.
std::string px(double value) { return number(std::round(value * 100) / 100); }

struct Layout {
  double left = 0;
  double top = 0;
  double plot = 0;    // width of the time axis
  double bar = 0;     // height of a device's ops
  double reduce = 0;  // height of its reductions under them; 0 where no device has any
  double memory = 0;  // height of its memory curve
  double pitch = 0;   // from one device to the next
  double label = 0;   // font size of the numbers in the boxes; 0: none
  int every = 1;      // every n-th device has its name and figures written
  double digits = 0;  // characters of the longest number in a box
  std::size_t rows = 0;
  std::vector<double> tops;  // of the rows, and where the last ends
  double makespan = 1;

  double x(double time) const { return left + time / makespan * plot; }
  double y(std::size_t row) const { return tops[row]; }
  double bottom() const { return tops[rows]; }
};

Layout choose_layout(const Timeline& timeline) {
  Layout l;
  l.rows = std::min(timeline.devices.size(), kMaxRows);
  l.makespan = timeline.makespan > 0 ? timeline.makespan : 1;
  // Few ops of a measured run are much shorter than the rest: those go without a number.
  const double shortest = std::max(shortest_span(timeline), median_span(timeline) / 2);
  double& digits = l.digits;
  digits = static_cast<double>(fmt::formatted_size("{}", max_microbatch(timeline)));
  if (timeline.num_slices > 1)
    digits += 0.7 * (1 + static_cast<double>(fmt::formatted_size("{}", timeline.num_slices - 1)));
  l.plot = std::clamp((digits * 11 * kDigit + 9) / shortest * l.makespan, kMinPlot, kMaxPlot);
  const double room = shortest / l.makespan * l.plot - 2;
  l.label = std::min(11.0, std::floor(2 * room / (digits * kDigit)) / 2);
  if (l.label < 6.5 || num_spans(timeline) > kMaxLabelled) l.label = 0;

  l.bar = l.rows <= 16 ? 24 : l.rows <= 64 ? 15 : l.rows <= 256 ? 7 : 3;
  l.memory = l.rows <= 16 ? 16 : std::floor(l.bar * 0.6);
  if (has_reductions(timeline)) l.reduce = l.rows <= 16 ? 8 : l.rows <= 64 ? 4 : 2;
  l.pitch = l.bar + l.reduce + l.memory + (l.rows <= 16 ? 10 : l.rows <= 64 ? 5 : 1);
  while (l.every * l.pitch < 12)
    l.every *= 2;
  if (l.label > l.bar - 3) l.label = 0;
  l.left = kMargin + 24 + 7 * static_cast<double>(fmt::formatted_size("{}", l.rows)) + 26;
  double longest_name = 0;
  for (std::size_t row = 0; row < l.rows; ++row)
    if (!timeline.devices[row].group.empty())
      longest_name = std::max(longest_name, static_cast<double>(timeline.device_name(row).size()));
  l.left = std::max(l.left, kMargin + 6.5 * longest_name + 8);
  l.top = kMargin + 92;
  double groups = 0;
  for (std::size_t row = 0; row <= l.rows; ++row) {
    if (row > 0 && row < l.rows && timeline.devices[row].group != timeline.devices[row - 1].group)
      groups += kGroupGap;
    l.tops.push_back(l.top + static_cast<double>(row) * l.pitch + groups);
  }
  return l;
}

void text(std::string& out, double x, double y, std::string_view attributes,
          std::string_view content) {
  fmt::format_to(std::back_inserter(out), "<text x=\"{}\" y=\"{}\"{}{}>{}</text>\n", px(x), px(y),
                 attributes.empty() ? "" : " ", attributes, escape_xml(content));
}

// --- Boxes -------------------------------------------------------------------------------------

// The span as the box [x0, x1] x [y0, y1]; ops that run at the same time share the row's height.
struct Box {
  double x0, x1, y0, y1;
};

std::vector<Box> boxes_of(const Layout& l, const DeviceTimeline& device, std::size_t row) {
  std::vector<Box> boxes;
  for (const Span& span : device.spans)
    boxes.push_back({l.x(span.start), l.x(span.end), l.y(row), l.y(row) + l.bar});
  for (const auto& [first, last] : joined_groups(device)) {
    const auto lanes = static_cast<double>(last - first + 1);
    bool overlap = false;
    for (std::size_t i = first + 1; i <= last; ++i)
      overlap = overlap || device.spans[i].start < device.spans[i - 1].end - l.makespan * 1e-9;
    if (!overlap) continue;
    for (std::size_t i = first; i <= last; ++i) {
      boxes[i].y0 = l.y(row) + static_cast<double>(i - first) * l.bar / lanes;
      boxes[i].y1 = boxes[i].y0 + l.bar / lanes;
    }
  }
  return boxes;
}

void add_box(std::string& path, const Box& b) {
  // A hairline between neighbours, where they are wide enough to spare it.
  const double gap = b.x1 - b.x0 > 3 ? 0.8 : 0;
  fmt::format_to(std::back_inserter(path), "M{} {}h{}v{}h-{}z", px(b.x0), px(b.y0),
                 px(b.x1 - b.x0 - gap), px(b.y1 - b.y0), px(b.x1 - b.x0 - gap));
}

// One path per colour keeps the file small; labels and hover titles come on top of it.
void draw_boxes(std::string& out, const Timeline& timeline, const Layout& l, std::size_t row) {
  const DeviceTimeline& device = timeline.devices[row];
  const std::vector<Box> boxes = boxes_of(l, device, row);
  const int shades = num_shades(timeline);
  std::map<std::pair<int, int>, std::string> paths;  // by kind and shade
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Op& op = device.spans[i].op;
    add_box(paths[{static_cast<int>(op.kind), shade_of(timeline, op)}], boxes[i]);
  }
  for (const auto& [key, path] : paths)
    fmt::format_to(std::back_inserter(out), "<path fill=\"{}\" d=\"{}\"/>\n",
                   hex(kind_colour(static_cast<OpKind>(key.first), key.second, shades)), path);

  std::string brackets;
  for (const auto& [first, last] : joined_groups(device)) {
    Box group = boxes[first];
    for (std::size_t i = first; i <= last; ++i)
      group = {std::min(group.x0, boxes[i].x0), std::max(group.x1, boxes[i].x1), l.y(row),
               l.y(row) + l.bar};
    fmt::format_to(std::back_inserter(brackets), "M{} {}h{}v{}h-{}z", px(group.x0), px(group.y0),
                   px(group.x1 - group.x0 - 0.8), px(l.bar), px(group.x1 - group.x0 - 0.8));
  }
  if (!brackets.empty())
    fmt::format_to(std::back_inserter(out),
                   "<path fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" d=\"{}\"/>\n", hex(kInk),
                   brackets);
}

void draw_labels(std::string& out, const Timeline& timeline, const Layout& l, std::size_t row) {
  const DeviceTimeline& device = timeline.devices[row];
  const std::vector<Box> boxes = boxes_of(l, device, row);
  const int shades = num_shades(timeline);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Op& op = device.spans[i].op;
    const Unit unit = time_unit(timeline);
    if (op.microbatch < 0) continue;
    const Box& b = boxes[i];
    const double size = std::min(l.label, b.y1 - b.y0 - 1);
    if (l.digits * kDigit * size > b.x1 - b.x0) continue;
    const Rgb ink = readable_on(kind_colour(op.kind, shade_of(timeline, op), shades));
    const std::string slice =
        timeline.num_slices > 1
            ? fmt::format("<tspan font-size=\"{}\">.{}</tspan>", px(size * 0.7), op.slice)
            : "";
    fmt::format_to(std::back_inserter(out),
                   "<text x=\"{}\" y=\"{}\" fill=\"{}\"{}>{}{}<title>{}</title></text>\n",
                   px((b.x0 + b.x1) / 2), px((b.y0 + b.y1) / 2 + size * 0.36), hex(ink),
                   size < l.label ? fmt::format(" font-size=\"{}\"", px(size)) : "", op.microbatch,
                   slice,
                   escape_xml(fmt::format("{}: {} to {}", timeline.text(op),
                                          with_unit(device.spans[i].start, unit),
                                          with_unit(device.spans[i].end, unit))));
  }
}

// Too many spans to draw each: what a box would show of them, as an average colour per bin.
void draw_averages(std::string& out, const Timeline& timeline, const Layout& l, std::size_t row) {
  const auto num_bins =
      std::clamp<std::size_t>(kMaxBoxes / l.rows, 50, static_cast<std::size_t>(l.plot));
  struct Sum {
    double r = 0, g = 0, b = 0, time = 0;
  };
  std::vector<Sum> bins(num_bins);
  const double bin = l.makespan / static_cast<double>(num_bins);
  const int shades = num_shades(timeline);
  for (const Span& span : timeline.devices[row].spans) {
    const Rgb colour = kind_colour(span.op.kind, shade_of(timeline, span.op), shades);
    for (auto i = static_cast<std::size_t>(span.start / bin); i < num_bins; ++i) {
      const double from = static_cast<double>(i) * bin;
      const double time = std::min(span.end, from + bin) - std::max(span.start, from);
      if (from >= span.end) break;
      bins[i].r += time * colour.r;
      bins[i].g += time * colour.g;
      bins[i].b += time * colour.b;
      bins[i].time += time;
    }
  }
  // Coarse channels, so that neighbours merge into one box.
  const auto channel = [&](double sum, double time, std::uint8_t idle) {
    const double total = std::max(bin, time);
    const double value = (sum + (total - time) * idle) / total;
    return static_cast<std::uint8_t>(std::min(255.0, std::round(value / 8) * 8));
  };
  const auto colour_of = [&](const Sum& s) {
    return Rgb{channel(s.r, s.time, kIdle.r), channel(s.g, s.time, kIdle.g),
               channel(s.b, s.time, kIdle.b)};
  };
  const double width = l.plot / static_cast<double>(num_bins);
  for (std::size_t i = 0; i < num_bins;) {
    std::size_t j = i + 1;
    while (j < num_bins && colour_of(bins[j]) == colour_of(bins[i]))
      ++j;
    if (bins[i].time > 0)
      fmt::format_to(std::back_inserter(out), "<path fill=\"{}\" d=\"M{} {}h{}v{}h-{}z\"/>\n",
                     hex(colour_of(bins[i])), px(l.left + static_cast<double>(i) * width),
                     px(l.y(row)), px(static_cast<double>(j - i) * width), px(l.bar),
                     px(static_cast<double>(j - i) * width));
    i = j;
  }
}

// A strip under the device's ops.
void draw_reductions(std::string& out, const Timeline& timeline, const Layout& l, std::size_t row) {
  const double top = l.y(row) + l.bar + (l.reduce >= 8 ? 2 : 0);
  for (const Reduction& reduction : timeline.devices[row].reductions) {
    std::string path;
    add_box(path, {l.x(reduction.start), l.x(reduction.end), top, l.y(row) + l.bar + l.reduce});
    const Unit unit = time_unit(timeline);
    fmt::format_to(
        std::back_inserter(out), "<path fill=\"{}\" d=\"{}\"><title>{}: {} to {}</title></path>\n",
        hex(kind_colour(reduction.op.kind, shade_of(timeline, reduction.op), num_shades(timeline))),
        path, escape_xml(timeline.text(reduction.op)), with_unit(reduction.start, unit),
        with_unit(reduction.end, unit));
  }
}

// --- Memory ------------------------------------------------------------------------------------

// A step area on its own base line, all devices to one scale. Steps closer than half a pixel are
// drawn as their maximum, so that no peak is lost.
void draw_memory(std::string& out, const Timeline& timeline, const Layout& l, std::size_t row) {
  const DeviceTimeline& device = timeline.devices[row];
  const double scale = max_peak(timeline);
  if (l.memory < 1 || device.memory.empty() || !(scale > 0)) return;
  const double base = l.y(row) + l.bar + l.reduce + l.memory + (l.memory >= 12 ? 3 : 1);
  const auto y = [&](double value) { return base - value / scale * (l.memory - 1); };
  std::string path = fmt::format("M{} {}", px(l.x(device.memory.front().time)), px(base));
  std::string last_y;
  const auto step = [&](double x, double value) {
    const std::string now = px(y(value));
    if (now == last_y) return;
    path += fmt::format("H{}V{}", px(x), now);
    last_y = now;
  };
  for (std::size_t i = 0; i < device.memory.size();) {
    const double x = std::round(l.x(device.memory[i].time) * 2) / 2;
    double most = 0;
    for (; i < device.memory.size() && l.x(device.memory[i].time) < x + 0.25; ++i)
      most = std::max(most, device.memory[i].value);
    step(x, most);
    step(x + 0.5, device.memory[i - 1].value);
  }
  path += fmt::format("H{}V{}z", px(l.x(l.makespan)), px(base));
  fmt::format_to(std::back_inserter(out), "<path fill=\"{}\" d=\"{}\"/>\n",
                 hex(mix(kMemory, kWhite, 0.35)), path);
}

// --- Around the plot ---------------------------------------------------------------------------

void draw_axis(std::string& out, const Timeline& timeline, const Layout& l) {
  const Unit unit = time_unit(timeline);
  const double step = nice_step(l.makespan / unit.size / (l.plot / 70)) * unit.size;
  std::string lines;
  std::string labels;
  for (int k = 0; k * step <= l.makespan * (1 + 1e-9); ++k) {
    const double x = l.x(k * step);
    fmt::format_to(std::back_inserter(lines), "M{} {}V{}", px(x), px(l.top - 6),
                   px(l.bottom() + 2));
    text(labels, x, l.bottom() + 16, "", tidy(k * step / unit.size));
  }
  fmt::format_to(std::back_inserter(out), "<path stroke=\"{}\" fill=\"none\" d=\"{}\"/>\n",
                 hex(kRule), lines);
  fmt::format_to(std::back_inserter(out),
                 "<g font-size=\"11\" fill=\"{}\" text-anchor=\"middle\">\n{}</g>\n",
                 hex(kFaintInk), labels);
  text(out, l.left + l.plot, l.bottom() + 32,
       fmt::format("font-size=\"11\" fill=\"{}\" text-anchor=\"end\"", hex(kFaintInk)),
       unit.name.empty() ? "time (units)" : fmt::format("time ({})", unit.name));
}

// Returns where it ends.
double draw_legend(std::string& out, const Timeline& timeline, double x, double y) {
  const int shades = num_shades(timeline);
  const auto swatch = [&](Rgb colour, double width, double height) {
    fmt::format_to(std::back_inserter(out),
                   "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", px(x),
                   px(y - height + 1), px(width), px(height), hex(colour));
    x += width;
  };
  const auto words = [&](std::string_view what) {
    text(out, x + 5, y, "", what);
    x += 5 + 6.1 * static_cast<double>(what.size()) + 18;
  };
  fmt::format_to(std::back_inserter(out), "<g font-size=\"12\" fill=\"{}\">\n", hex(kInk));
  for (const OpKind kind : kinds_in(timeline)) {
    for (int shade = 0; shade < std::min(shades, 8); ++shade)
      swatch(kind_colour(kind, shade, std::min(shades, 8)), shades > 1 ? 10 : 14, 12);
    words(kind_words(kind));
  }
  swatch(kIdle, 14, 12);
  fmt::format_to(
      std::back_inserter(out),
      "<rect x=\"{}\" y=\"{}\" width=\"13\" height=\"11\" fill=\"none\" stroke=\"{}\"/>\n",
      px(x - 13.5), px(y - 10.5), hex(kRule));
  words("idle");
  swatch(mix(kMemory, kWhite, 0.35), 14, 7);
  words(timeline.bytes ? "memory" : "memory (stage-activations)");
  if (shades > 1)
    words(fmt::format("deep: {}, light: {}", shade_words(timeline, 0),
                      shade_words(timeline, shades - 1)));
  out += "</g>\n";
  return x;
}

void draw_figures(std::string& out, const Timeline& timeline, const Layout& l) {
  const double right = l.left + l.plot + 10;
  const double middle = l.bar / 2 + 4;
  fmt::format_to(std::back_inserter(out), "<g font-size=\"11\" fill=\"{}\">\n", hex(kFaintInk));
  for (std::size_t row = 0; row < l.rows; row += static_cast<std::size_t>(l.every)) {
    const DeviceTimeline& device = timeline.devices[row];
    text(
        out, l.left - 8, l.y(row) + middle,
        fmt::format("text-anchor=\"end\" fill=\"{}\"", hex(kInk)),
        l.rows <= 64 || !device.group.empty() ? timeline.device_name(row) : fmt::format("{}", row));
    const std::string idle = fmt::format("{} idle", percent(idle_share(timeline, row)));
    const std::string peak = fmt::format("peak {}", with_unit(device.peak, memory_unit(timeline)));
    if (l.memory >= 12) {
      text(out, right, l.y(row) + middle, "", idle);
      text(out, right, l.y(row) + l.bar + l.reduce + l.memory - 1, "", peak);
    } else {
      text(out, right, l.y(row) + middle, "", fmt::format("{}, {}", idle, peak));
    }
  }
  out += "</g>\n";
}

}  // namespace

std::string render_svg(const Timeline& timeline) {
  const Layout l = choose_layout(timeline);
  const bool averaged = num_spans(timeline) > kMaxBoxes;
  std::string caption = timeline.caption;
  if (averaged) caption += " (too many ops to draw each: colours are averages)";
  if (l.rows < timeline.devices.size())
    caption += fmt::format(" (first {} of {} devices)", l.rows, timeline.devices.size());
  if (l.rows == 0) caption += " (nothing to draw)";

  std::string legend;
  const double legend_end = draw_legend(legend, timeline, kMargin, kMargin + 66);
  const double caption_end = kMargin + 13 * 0.56 * static_cast<double>(caption.size());
  const double width =
      std::max({l.left + l.plot + (l.memory >= 12 ? 90 : 150) - 14, legend_end, caption_end}) +
      kMargin;
  const double height = l.bottom() + 32 + kMargin;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" role=\"img\" font-family=\"{2}\">\n<title>{3}</title>\n<desc>{4}</desc>\n"
      "<rect width=\"{0}\" height=\"{1}\" rx=\"8\" fill=\"{5}\"/>\n",
      px(width), px(height), escape_xml(kFontFamily), escape_xml(timeline.name),
      escape_xml(caption), hex(kWhite));
  text(out, kMargin, kMargin + 16,
       fmt::format("font-size=\"20\" font-weight=\"600\" fill=\"{}\"", hex(kInk)), timeline.name);
  text(out, kMargin, kMargin + 38, fmt::format("font-size=\"13\" fill=\"{}\"", hex(kFaintInk)),
       caption);
  out += legend;
  draw_axis(out, timeline, l);
  std::string idle;
  for (std::size_t row = 0; row < l.rows; ++row)
    add_box(idle, {l.left, l.left + l.plot, l.y(row), l.y(row) + l.bar});
  fmt::format_to(std::back_inserter(out), "<path fill=\"{}\" d=\"{}\"/>\n", hex(kIdle), idle);
  for (std::size_t row = 0; row < l.rows; ++row) {
    if (averaged)
      draw_averages(out, timeline, l, row);
    else
      draw_boxes(out, timeline, l, row);
    draw_reductions(out, timeline, l, row);
    draw_memory(out, timeline, l, row);
  }
  if (l.label > 0) {
    fmt::format_to(std::back_inserter(out),
                   "<g font-size=\"{}\" text-anchor=\"middle\" pointer-events=\"all\">\n",
                   px(l.label));
    for (std::size_t row = 0; row < l.rows; ++row)
      draw_labels(out, timeline, l, row);
    out += "</g>\n";
  }
  draw_figures(out, timeline, l);
  return out + "</svg>\n";
}

}  // namespace sluice
