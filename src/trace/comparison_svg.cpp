#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sluice/base/text.h"
#include "sluice/trace/render.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 560;
constexpr double kLeft = 76;
constexpr double kRight = kWidth - 40;
constexpr double kTop = 84;
constexpr double kBottom = kHeight - 64;
constexpr double kFont = 12;
constexpr double kDot = 5;
constexpr double kFarthest =
    3;  // times the reference's memory; what lies beyond is drawn at the edge
constexpr Rgb kDotColour = {42, 86, 168};
constexpr Rgb kReferenceColour = {207, 74, 18};

std::string px(double value) { return number(std::round(value * 10) / 10); }

// Schedules at the same place share a dot and a label.
struct Mark {
  std::string label;
  double x = 0;
  double y = 0;
  bool reference = false;  // one of them is the reference
  bool frontier = false;
  bool beyond = false;  // right of the plot
};

struct Rect {
  double x0, y0, x1, y1;
};

double overlap(const Rect& a, const Rect& b) {
  const double w = std::min(a.x1, b.x1) - std::max(a.x0, b.x0);
  const double h = std::min(a.y1, b.y1) - std::max(a.y0, b.y0);
  return w > 0 && h > 0 ? w * h : 0;
}

struct Axes {
  double x_max = 1.25;
  double x_step = 0.25;
  // Makespans are close to each other: their axis does not begin at 0.
  double y_min = 0.8;
  double y_max = 1.2;
  double y_step = 0.1;

  double x(double value) const { return kLeft + value / x_max * (kRight - kLeft); }
  double y(double value) const {
    return kBottom - (value - y_min) / (y_max - y_min) * (kBottom - kTop);
  }
};

Axes choose_axes(const std::vector<ComparisonPoint>& points) {
  double x = 1;
  double low = 1, high = 1;
  for (const ComparisonPoint& point : points) {
    if (point.peak <= kFarthest) x = std::max(x, point.peak);
    low = std::min(low, point.makespan);
    high = std::max(high, point.makespan);
  }
  Axes axes;
  axes.x_step = nice_step(x * 1.1 / 9);
  axes.x_max = std::ceil(x * 1.1 / axes.x_step) * axes.x_step;
  const double margin = std::max(high - low, 0.1) * 0.06;
  axes.y_step = nice_step((high - low + 2 * margin) / 8);
  axes.y_min = std::floor((low - margin) / axes.y_step) * axes.y_step;
  axes.y_max = std::ceil((high + margin) / axes.y_step) * axes.y_step;
  return axes;
}

// No other schedule is both faster and smaller; of equals, all.
bool on_frontier(const ComparisonPoint& point, const std::vector<ComparisonPoint>& points) {
  constexpr double kNear = 1e-9;
  return std::none_of(points.begin(), points.end(), [&](const ComparisonPoint& other) {
    const bool no_worse =
        other.makespan <= point.makespan + kNear && other.peak <= point.peak + kNear;
    const bool better = other.makespan < point.makespan - kNear || other.peak < point.peak - kNear;
    return no_worse && better;
  });
}

std::vector<Mark> marks_of(const std::vector<ComparisonPoint>& points, const Axes& axes,
                           const std::string& reference) {
  std::vector<Mark> marks;
  for (const ComparisonPoint& point : points) {
    Mark mark;
    mark.beyond = point.peak > axes.x_max;
    mark.label = mark.beyond ? fmt::format("{} ({}x)", point.name, tidy(point.peak)) : point.name;
    mark.x = mark.beyond ? kRight : axes.x(point.peak);
    mark.y = axes.y(point.makespan);
    mark.reference = point.name == reference;
    mark.frontier = on_frontier(point, points);
    const auto same = std::find_if(marks.begin(), marks.end(), [&](const Mark& other) {
      return std::abs(other.x - mark.x) < 2 && std::abs(other.y - mark.y) < 2 &&
             other.beyond == mark.beyond;
    });
    if (same == marks.end()) {
      marks.push_back(std::move(mark));
      continue;
    }
    same->label += ", " + mark.label;
    same->reference = same->reference || mark.reference;
    same->frontier = same->frontier || mark.frontier;
  }
  return marks;
}

double text_width(std::string_view text) { return static_cast<double>(text.size()) * kFont * 0.56; }

// Greedy: labels in the order of how crowded they are, each at the nearest place around its dot
// that covers least. Good enough for a few dozen schedules.
std::vector<Rect> place_labels(const std::vector<Mark>& marks) {
  std::vector<Rect> taken;
  for (const Mark& mark : marks)
    taken.push_back({mark.x - kDot - 1, mark.y - kDot - 1, mark.x + kDot + 1, mark.y + kDot + 1});
  std::vector<std::size_t> order(marks.size());
  std::vector<int> crowd(marks.size());
  for (std::size_t i = 0; i < marks.size(); ++i) {
    order[i] = i;
    for (const Mark& other : marks)
      crowd[i] += std::abs(other.x - marks[i].x) < 90 && std::abs(other.y - marks[i].y) < 30;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return crowd[a] < crowd[b]; });

  std::vector<Rect> labels(marks.size());
  for (const std::size_t i : order) {
    const Mark& mark = marks[i];
    const double w = text_width(mark.label);
    double best_cost = -1;
    for (int ring = 0; ring < 9; ++ring) {
      const double reach = kDot + 4 + ring * 10;
      for (int turn = 0; turn < 16; ++turn) {
        const double angle = turn * 3.14159265358979 / 8;
        const double cx = mark.x + std::cos(angle) * (reach + w / 2);
        const double cy = mark.y - std::sin(angle) * (reach + kFont / 2);
        const Rect box = {cx - w / 2, cy - kFont / 2 - 1, cx + w / 2, cy + kFont / 2 + 1};
        double cost = ring * 12 + (turn == 0 ? 0 : turn == 8 ? 2 : turn % 4 == 0 ? 3 : 5);
        for (const Rect& other : taken)
          cost += 20 * overlap(box, other);
        const Rect frame = {kLeft + 2, kTop - 14, kRight + 34, kBottom - 2};
        cost += 20 * ((box.x1 - box.x0) * (box.y1 - box.y0) - overlap(box, frame));
        if (best_cost < 0 || cost < best_cost) {
          best_cost = cost;
          labels[i] = box;
        }
      }
    }
    taken.push_back(labels[i]);
  }
  return labels;
}

void draw_axes(std::string& out, const Axes& axes, const std::string& reference) {
  const auto back = std::back_inserter(out);
  std::string lines;
  fmt::format_to(back, "<g font-size=\"12\" fill=\"{}\">\n", hex(kFaintInk));
  for (int k = 0; k * axes.x_step <= axes.x_max * (1 + 1e-9); ++k) {
    const double x = axes.x(k * axes.x_step);
    lines += fmt::format("M{} {}V{}", px(x), px(kTop), px(kBottom));
    fmt::format_to(back, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", px(x),
                   px(kBottom + 18), tidy(k * axes.x_step));
  }
  const double ticks = std::round((axes.y_max - axes.y_min) / axes.y_step);
  for (int k = 0; k <= static_cast<int>(ticks); ++k) {
    const double value = axes.y_min + k * axes.y_step, y = axes.y(value);
    lines += fmt::format("M{} {}H{}", px(kLeft), px(y), px(kRight));
    fmt::format_to(back, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", px(kLeft - 8),
                   px(y + 4), tidy(value));
  }
  fmt::format_to(back,
                 "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"13\">peak memory of a "
                 "device, relative to {}</text>\n",
                 px((kLeft + kRight) / 2), px(kBottom + 42), escape_xml(reference));
  fmt::format_to(back,
                 "<text transform=\"translate(22 {}) rotate(-90)\" text-anchor=\"middle\" "
                 "font-size=\"13\">makespan, relative to {}</text>\n</g>\n",
                 px((kTop + kBottom) / 2), escape_xml(reference));
  fmt::format_to(back, "<path stroke=\"{}\" fill=\"none\" d=\"{}\"/>\n", hex(kRule), lines);
  fmt::format_to(back, "<path stroke=\"{}\" fill=\"none\" d=\"M{} {}V{}H{}\"/>\n", hex(kFaintInk),
                 px(kLeft), px(kTop), px(kBottom), px(kRight));
  fmt::format_to(back,
                 "<path stroke=\"{}\" stroke-dasharray=\"4 4\" fill=\"none\" d=\"M{} {}V{}\"/>\n",
                 hex(mix(kReferenceColour, kWhite, 0.4)), px(axes.x(1)), px(kTop), px(kBottom));
  fmt::format_to(back,
                 "<path stroke=\"{}\" stroke-dasharray=\"4 4\" fill=\"none\" d=\"M{} {}H{}\"/>\n",
                 hex(mix(kReferenceColour, kWhite, 0.4)), px(kLeft), px(axes.y(1)), px(kRight));
}

// Down from the top at the least memory, along the frontier, out to the right.
void draw_frontier(std::string& out, std::vector<Mark> marks) {
  std::erase_if(marks, [](const Mark& mark) { return !mark.frontier || mark.beyond; });
  if (marks.empty()) return;
  std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.x < b.x; });
  std::string path = fmt::format("M{} {}", px(marks[0].x), px(kTop));
  for (const Mark& mark : marks)
    path += fmt::format("H{}V{}", px(mark.x), px(mark.y));
  path += fmt::format("H{}", px(kRight));
  const Rgb green = {31, 160, 143};
  fmt::format_to(std::back_inserter(out),
                 "<path stroke=\"{0}\" stroke-width=\"2\" fill=\"none\" d=\"{1}\"/>\n", hex(green),
                 path);
}

void draw_marks(std::string& out, const std::vector<Mark>& marks) {
  const std::vector<Rect> labels = place_labels(marks);
  const auto back = std::back_inserter(out);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const Rect& box = labels[i];
    const double x = std::clamp(marks[i].x, box.x0, box.x1);
    const double y = std::clamp(marks[i].y, box.y0 + 2, box.y1 - 2);
    if (std::hypot(x - marks[i].x, y - marks[i].y) > kDot + 8)
      fmt::format_to(back, "<path stroke=\"{}\" d=\"M{} {}L{} {}\"/>\n", hex(kFaintInk),
                     px(marks[i].x), px(marks[i].y), px(x), px(y));
  }
  for (const Mark& mark : marks) {
    const Rgb colour = mark.reference ? kReferenceColour : kDotColour;
    if (mark.beyond)
      fmt::format_to(back, "<path fill=\"{}\" d=\"M{} {}l9 5l-9 5z\"/>\n", hex(colour), px(mark.x),
                     px(mark.y - 5));
    else
      fmt::format_to(back,
                     "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\" stroke=\"{}\" "
                     "stroke-width=\"1.6\"/>\n",
                     px(mark.x), px(mark.y), px(mark.reference ? kDot + 1 : kDot),
                     hex(mark.frontier || mark.reference ? colour : kWhite), hex(colour));
  }
  // A white halo keeps a label readable where it crosses a line.
  fmt::format_to(back,
                 "<g font-size=\"{}\" fill=\"{}\" stroke=\"{}\" stroke-width=\"3\" "
                 "stroke-linejoin=\"round\" paint-order=\"stroke\" text-anchor=\"middle\">\n",
                 px(kFont), hex(kInk), hex(kWhite));
  for (std::size_t i = 0; i < marks.size(); ++i)
    fmt::format_to(back, "<text x=\"{}\" y=\"{}\"{}>{}</text>\n",
                   px((labels[i].x0 + labels[i].x1) / 2),
                   px((labels[i].y0 + labels[i].y1) / 2 + kFont * 0.35),
                   marks[i].reference ? " font-weight=\"700\"" : "", escape_xml(marks[i].label));
  out += "</g>\n";
}

}  // namespace

std::string render_comparison_svg(const std::string& title, const std::string& reference,
                                  const std::vector<ComparisonPoint>& points) {
  const Axes axes = choose_axes(points);
  const std::vector<Mark> marks = marks_of(points, axes, reference);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" role=\"img\" font-family=\"{2}\">\n<title>{3}</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" rx=\"8\" fill=\"{4}\"/>\n",
      px(kWidth), px(kHeight), escape_xml(kFontFamily), escape_xml(title), hex(kWhite));
  fmt::format_to(
      std::back_inserter(out),
      "<text x=\"24\" y=\"36\" font-size=\"18\" font-weight=\"600\" fill=\"{}\">{}</text>\n"
      "<text x=\"24\" y=\"58\" font-size=\"12\" fill=\"{}\">filled: no schedule here is "
      "both faster and smaller (the line joins them); orange: the reference</text>\n",
      hex(kInk), escape_xml(title), hex(kFaintInk));
  draw_axes(out, axes, reference);
  draw_frontier(out, marks);
  draw_marks(out, marks);
  return out + "</svg>\n";
}

}  // namespace sluice
