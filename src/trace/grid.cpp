#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "sluice/base/text.h"
#include "sluice/trace/render.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

constexpr int kMaxDevices = 64;
constexpr int kMaxBands = 20;
constexpr int kMaxLines = 400;  // of all bands together, as far as two bands allow it
constexpr int kMinWidth = 40;

// --- What is written into a cell ---------------------------------------------------------------

char kind_letter(OpKind kind) { return kind == OpKind::Update ? 'U' : kind_name(kind).front(); }

bool odd_shade(const Timeline& timeline, const Op& op) { return shade_of(timeline, op) % 2 != 0; }

// F3, f3 in the second chunk or pipe, F3.1 for a slice; R2 for the reduction of stage 2.
std::string label_of(const Timeline& timeline, const Op& op) {
  std::string label(1, kind_letter(op.kind));
  if (odd_shade(timeline, op)) label = lower(label);
  if (op.microbatch >= 0 && has_microbatch(op.kind)) {
    label += fmt::format("{}", op.microbatch);
    if (timeline.num_slices > 1) label += fmt::format(".{}", op.slice);
  } else {
    label += fmt::format("{}", op.stage);
  }
  return label;
}

std::size_t widest_label(const Timeline& timeline) {
  Op op;
  op.microbatch = max_microbatch(timeline);
  op.slice = static_cast<std::uint16_t>(timeline.num_slices - 1);
  return label_of(timeline, op).size();
}

// Background and text of the 256-colour palette.
std::string_view ansi_style(OpKind kind, bool odd) {
  switch (kind) {
    case OpKind::F: return odd ? "48;5;111;38;5;16" : "48;5;25;38;5;231";
    case OpKind::I: return odd ? "48;5;158;38;5;16" : "48;5;36;38;5;16";
    case OpKind::W: return odd ? "48;5;229;38;5;16" : "48;5;148;38;5;16";
    case OpKind::B: return odd ? "48;5;216;38;5;16" : "48;5;166;38;5;231";
    default: return odd ? "48;5;251;38;5;16" : "48;5;244;38;5;16";
  }
}

std::string in_style(std::string_view style, std::string_view text, bool colour) {
  return colour ? fmt::format("\x1b[{}m{}\x1b[0m", style, text) : std::string(text);
}

// --- Time to columns ---------------------------------------------------------------------------

struct Scale {
  double columns_per_time = 1;
  long step = 1;  // columns of one common time step; 1 where the times have none

  long column(double time) const { return std::lround(time * columns_per_time); }
};

// The greatest time that divides every start and end, or nothing if it is below `least`.
std::optional<double> common_step(const Timeline& timeline, double least) {
  const double tolerance = least * 1e-6;
  double step = 0;
  const auto include = [&](double time) {
    if (time <= tolerance) return true;
    double rest = std::exchange(step, time);
    while (rest > tolerance) {
      const double next = std::fmod(step, rest);
      step = std::exchange(rest, next > rest - tolerance ? 0 : next);
    }
    return step >= least * (1 - 1e-6);
  };
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans)
      if (!include(span.start) || !include(span.end)) return std::nullopt;
  if (step == 0) return std::nullopt;
  return step;
}

// Exact where the times have a common step that does not make the shortest op absurdly wide;
// otherwise wide enough for the label of a short op.
Scale choose_scale(const Timeline& timeline, long cell) {
  const double shortest = shortest_span(timeline);
  if (const auto step = common_step(timeline, shortest / static_cast<double>(3 * cell))) {
    const long steps = std::max(1L, std::lround(shortest / *step));
    const long columns = (cell + steps - 1) / steps;
    return {static_cast<double>(columns) / *step, columns};
  }
  double busy = 0;
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans)
      busy += span.end - span.start;
  const double mean = busy / static_cast<double>(std::max<std::size_t>(1, num_spans(timeline)));
  return {static_cast<double>(cell) / std::max(shortest, mean / 3), 1};
}

// --- One band of one device --------------------------------------------------------------------

struct Band {
  long begin = 0;  // columns
  long end = 0;
};

class Row {
 public:
  Row(const Timeline& timeline, const Scale& scale, Band band, bool colour)
      : timeline_(timeline), scale_(scale), band_(band), colour_(colour) {
    text_.assign(static_cast<std::size_t>(band.end - band.begin), ' ');
    style_.resize(text_.size());
  }

  // Dots where nothing else will be drawn.
  void fill() {
    for (long c = band_.begin; c < band_.end; ++c)
      if (c % scale_.step == 0) text_[at(c)] = '.';
  }

  void draw(const std::vector<Span>& spans) {
    auto i = static_cast<std::size_t>(std::partition_point(spans.begin(), spans.end(),
                                                           [&](const Span& span) {
                                                             return scale_.column(span.start) <
                                                                    band_.begin;
                                                           }) -
                                      spans.begin());
    // An op that began in the band before reaches into this one; so may the group it belongs to.
    while (i > 0 && (scale_.column(spans[i - 1].end) > band_.begin ||
                     (i < spans.size() && spans[i].op.joined)))
      --i;
    while (i < spans.size() && scale_.column(spans[i].start) < band_.end) {
      const Span& span = spans[i];
      const bool joined = i + 1 < spans.size() && spans[i + 1].op.joined;
      if (joined && spans[i + 1].start < span.end - timeline_.makespan * 1e-9) {
        // Two ops at once share the room: the first the left half, the second the right.
        const long begin = scale_.column(span.start);
        const long end = scale_.column(std::max(span.end, spans[i + 1].end));
        box(span.op, begin, (begin + end) / 2, '+');
        box(spans[i + 1].op, (begin + end) / 2, end, ' ');
        i += 2;
      } else {
        box(span.op, scale_.column(span.start), scale_.column(span.end), joined ? '+' : ' ');
        ++i;
      }
    }
  }

  std::string text() const {
    std::string out;
    for (std::size_t i = 0; i < text_.size();) {
      std::size_t j = i;
      while (j < text_.size() && style_[j] == style_[i])
        ++j;
      const std::string_view run(text_.data() + i, j - i);
      out += style_[i].empty() ? std::string(run) : in_style(style_[i], run, colour_);
      i = j;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out;
  }

 private:
  std::size_t at(long column) const { return static_cast<std::size_t>(column - band_.begin); }

  // The label, a line to the end of the op, and `last` to part it from the next.
  void box(const Op& op, long begin, long end, char last) {
    const bool continued = begin < band_.begin;
    begin = std::max(begin, band_.begin);
    end = std::min(end, band_.end);
    if (begin >= end) return;
    const auto room = static_cast<std::size_t>(end - begin);
    std::string label = label_of(timeline_, op);
    if (label.size() > room || (continued && label.size() == room)) label.resize(continued ? 0 : 1);
    std::string content = label;
    // A line only where the op is longer than one step.
    const bool line = !colour_ && (scale_.step == 1 || end - begin > scale_.step);
    content.resize(room, line ? '-' : ' ');
    if (label.size() < room) content.back() = last;
    const std::string_view style =
        colour_ ? ansi_style(op.kind, odd_shade(timeline_, op)) : std::string_view{};
    for (std::size_t i = 0; i < room; ++i) {
      text_[at(begin) + i] = content[i];
      style_[at(begin) + i] = style;
    }
  }

  const Timeline& timeline_;
  const Scale& scale_;
  Band band_;
  bool colour_;
  std::string text_;
  std::vector<std::string_view> style_;
};

std::vector<Span> reduction_spans(const DeviceTimeline& device) {
  std::vector<Span> spans;
  for (const Reduction& reduction : device.reductions)
    spans.push_back({reduction.op, reduction.start, reduction.end});
  return spans;
}

std::string ruler(const Timeline& timeline, const Scale& scale, Band band, double tick) {
  const Unit unit = time_unit(timeline);
  std::string line;
  for (auto k = static_cast<long>(
           std::floor(static_cast<double>(band.begin) / (tick * scale.columns_per_time)));
       ; ++k) {
    const double time = static_cast<double>(k) * tick;
    const long column = scale.column(time) - band.begin;
    if (column >= band.end - band.begin) break;
    if (column < 0) continue;
    line.resize(std::max(line.size(), static_cast<std::size_t>(column)), ' ');
    line += tidy(time / unit.size);
  }
  return line;
}

std::string legend(const Timeline& timeline, bool colour) {
  std::string line;
  for (const OpKind kind : kinds_in(timeline)) {
    const std::string letter = fmt::format(" {} ", kind_letter(kind));
    line += fmt::format(
        "{}{}  ", colour ? in_style(ansi_style(kind, false), letter, true) + " " : letter.substr(1),
        kind_words(kind));
  }
  line += ". idle";
  const int shades = num_shades(timeline);
  if (shades == 2)
    line += fmt::format("  (lower case: {})", shade_words(timeline, 1));
  else if (shades > 2)
    line += "  (upper and lower case take turns from chunk to chunk)";
  for (const DeviceTimeline& device : timeline.devices)
    if (!joined_groups(device).empty()) return line + "  + runs as one with the next";
  return line;
}

// 0..count-1, or its head and tail with -1 between them.
std::vector<long> head_and_tail(long count, long most) {
  std::vector<long> shown;
  for (long i = 0; i < count; ++i) {
    if (count > most && i == (most + 1) / 2) {
      shown.push_back(-1);
      i = count - most / 2;
    }
    shown.push_back(i);
  }
  return shown;
}

// Lines of at most `width` columns, broken at spaces.
std::string wrapped(const std::string& text, int width) {
  std::string out;
  std::size_t column = 0;
  for (const std::string_view word : split(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > static_cast<std::size_t>(width)) {
      out += '\n';
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

}  // namespace

std::string render_grid(const Timeline& timeline, const GridOptions& options) {
  std::string out = in_style("1", timeline.name, options.colour) + '\n';
  if (!timeline.caption.empty()) out += wrapped(timeline.caption, options.width) + '\n';
  const auto num_devices = static_cast<long>(timeline.devices.size());
  if (num_spans(timeline) == 0 || !(timeline.makespan > 0)) return out + "(nothing to draw)\n";

  const auto cell = static_cast<long>(widest_label(timeline)) + 1;
  const Scale scale = choose_scale(timeline, cell);
  const std::size_t digits = fmt::formatted_size("{}", num_devices - 1);
  const long gutter = static_cast<long>(digits) + 9;  // "device N  "
  const double tick = nice_step(8 / scale.columns_per_time);
  const long tick_columns = scale.column(tick);

  // A band is whole steps and, if that fits, whole ticks: it then begins at a round time.
  long width = std::max(options.width, kMinWidth) - gutter;
  width = std::max(scale.step, width / scale.step * scale.step);
  if (tick_columns > 0 && tick_columns <= width && tick_columns % scale.step == 0)
    width = width / tick_columns * tick_columns;
  const long columns = std::max(1L, scale.column(timeline.makespan));
  const long num_bands = (columns + width - 1) / width;

  const bool reduces = has_reductions(timeline);
  const auto devices = head_and_tail(num_devices, kMaxDevices);
  const long fitting = kMaxLines / static_cast<long>(devices.size() * (reduces ? 2 : 1) + 2);
  const auto bands = head_and_tail(num_bands, std::clamp<long>(fitting, 2, kMaxBands));
  for (std::size_t b = 0; b < bands.size(); ++b) {
    out += '\n';
    if (bands[b] < 0) {
      const auto time = [&](long band) {
        return with_unit(static_cast<double>(band * width) / scale.columns_per_time,
                         time_unit(timeline));
      };
      out += fmt::format("... time {} to {} left out{}{} ...\n", time(bands[b - 1] + 1),
                         time(bands[b + 1]), options.remedy.empty() ? "" : "; ", options.remedy);
      continue;
    }
    const Band band = {bands[b] * width, std::min(columns, (bands[b] + 1) * width)};
    out +=
        fmt::format("{:<{}}{}\n",
                    fmt::format("time{}{}", timeline.seconds ? " " : "", time_unit(timeline).name),
                    gutter, ruler(timeline, scale, band, tick));
    for (const long d : devices) {
      if (d < 0) {
        out += fmt::format("... {} left out ...\n", counted(num_devices - kMaxDevices, "device"));
        continue;
      }
      Row row(timeline, scale, band, options.colour);
      const DeviceTimeline& device = timeline.devices[static_cast<std::size_t>(d)];
      row.fill();
      row.draw(device.spans);
      out += fmt::format("device {:>{}}  {}\n", d, digits, row.text());
      Row reductions(timeline, scale, band, options.colour);
      reductions.draw(reduction_spans(device));
      if (!reductions.text().empty())
        out += fmt::format("{:<{}}{}\n", "", gutter, reductions.text());
    }
  }
  return out + '\n' + legend(timeline, options.colour) + '\n';
}

}  // namespace sluice
