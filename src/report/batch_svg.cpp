// A planned batch as a picture: time to the right, ranks downwards, a box per group; beside it what
// simpler plans take.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>

#include "sluice/base/text.h"
#include "sluice/report/batch.h"
#include "sluice/trace/style.h"

namespace sluice {
namespace {

using flexsp::PlannedGroup;
using flexsp::PlannedMicrobatch;

constexpr double kMargin = 24;
constexpr double kTop = kMargin + 92;
constexpr double kPlot = 860;    // width of the time axis
constexpr double kBars = 250;    // width of the bars beside it
constexpr double kBetween = 48;  // plot and bars
constexpr double kHead = 32;     // over the groups of a band: what its microbatches are
constexpr double kFoot = 40;     // under them: the axis
constexpr double kBarPitch = 34;
constexpr double kDigit = 0.58;             // width of a digit, in font sizes
constexpr std::size_t kMostTitles = 5'000;  // hover titles, beyond which there are none
constexpr std::size_t kMostBands = 8;

const Rgb kOverhead = mix(kMemory, kWhite, 0.55);

std::string px(double value) { return number(std::round(value * 100) / 100); }

void text(std::string& out, double x, double y, std::string_view attributes,
          std::string_view content) {
  fmt::format_to(std::back_inserter(out), "<text x=\"{}\" y=\"{}\"{}{}>{}</text>\n", px(x), px(y),
                 attributes.empty() ? "" : " ", attributes, escape_xml(content));
}

void rectangle(std::string& out, double x, double y, double width, double height, Rgb colour) {
  fmt::format_to(std::back_inserter(out),
                 "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", px(x), px(y),
                 px(width), px(height), hex(colour));
}

double width_of(std::string_view words, double size) {
  return static_cast<double>(words.size()) * size * kDigit;
}

// The microbatches [first, last), one after the other in one row of the picture.
struct Band {
  std::size_t first = 0, last = 0;
  double seconds = 0;
};

struct Picture {
  const BatchReport& report;
  std::span<const PlannedMicrobatch> microbatches;
  std::vector<Band> bands;
  double rank = 0;     // height of one
  double seconds = 0;  // of the longest band
  double left = 0;
  bool titles = true;

  double height() const { return rank * report.cluster.devices; }
  double top(std::size_t band) const {
    return kTop + kHead + static_cast<double>(band) * (kHead + height() + kFoot);
  }
  double x(double time) const { return left + time / seconds * kPlot; }
};

Picture lay_out(const BatchReport& report) {
  Picture p{.report = report, .microbatches = {}, .bands = {}};
  if (report.batch) p.microbatches = report.batch->microbatches;
  const std::size_t count = p.microbatches.size();
  const std::size_t bands = std::clamp<std::size_t>((count + 7) / 8, 1, kMostBands);
  const std::size_t each = (count + bands - 1) / bands;
  std::size_t boxes = 0;
  for (std::size_t m = 0; m < count; ++m) {
    if (m % each == 0) p.bands.push_back({m, m, 0});
    p.bands.back().last = m + 1;
    p.bands.back().seconds += p.microbatches[m].seconds;
    p.seconds = std::max(p.seconds, p.bands.back().seconds);
    boxes += p.microbatches[m].groups.size();
  }
  p.titles = boxes <= kMostTitles;
  p.rank = std::min(20.0, 256.0 / report.cluster.devices);
  p.left =
      kMargin + 22 + 7 * static_cast<double>(fmt::formatted_size("{}", report.cluster.devices));
  return p;
}

// Deep blue is the largest degree.
Rgb degree_colour(const flexsp::Cluster& cluster, int degree) {
  const auto number =
      std::find(cluster.degrees.begin(), cluster.degrees.end(), degree) - cluster.degrees.begin();
  const int last = static_cast<int>(cluster.degrees.size()) - 1;
  return kind_colour(OpKind::F, last - static_cast<int>(number), std::max(2, last + 1));
}
Rgb all_to_all_colour() { return kind_colour(OpKind::B, 0, 1); }

// "8x7 4x2": degree and number of groups.
std::string mix_of(const PlannedMicrobatch& microbatch) {
  std::string out;
  for (std::size_t n = 0; n < microbatch.groups.size();) {
    const int degree = microbatch.groups[n].group.degree;
    std::size_t end = n;
    while (end < microbatch.groups.size() && microbatch.groups[end].group.degree == degree)
      ++end;
    out += fmt::format("{}{}x{}", out.empty() ? "" : " ", degree, end - n);
    n = end;
  }
  return out;
}

std::string title_of(const BatchReport& report, const PlannedGroup& group) {
  const SequenceGroup& g = group.group;
  std::string out =
      fmt::format("ranks {} to {}: {}, {}, {} ms ({} ms of it all-to-all), {} MiB", g.first_rank,
                  g.first_rank + g.degree - 1, counted(std::ssize(g.sequences), "sequence"),
                  counted(group.tokens, "token"), tidy(1000 * group.seconds),
                  tidy(1000 * group.all_to_all_seconds), tidy(group.bytes / (1 << 20)));
  for (std::size_t n = 0; n < std::min<std::size_t>(g.sequences.size(), 16); ++n)
    out += fmt::format("{} {}", n ? "," : "; lengths",
                       report.lengths[static_cast<std::size_t>(g.sequences[n])]);
  return out + (g.sequences.size() > 16 ? ", ..." : "");
}

void draw_group(std::string& out, const Picture& p, const PlannedGroup& group, double start,
                double y) {
  const BatchReport& report = p.report;
  const SequenceGroup& g = group.group;
  if (g.sequences.empty()) return;
  const double height = g.degree * p.rank, gap = height > 3 ? 0.8 : 0;
  const double overhead = std::min(report.cluster.costs.b1, group.seconds);
  const double x0 = p.x(start), x1 = p.x(start + overhead);
  const double x2 = p.x(start + group.seconds - group.all_to_all_seconds);
  const double x3 = p.x(start + group.seconds);
  const Rgb colour = degree_colour(report.cluster, g.degree);
  out += "<g>";
  if (p.titles) out += fmt::format("<title>{}</title>", escape_xml(title_of(report, group)));
  out += '\n';
  rectangle(out, x0, y, x1 - x0, height - gap, kOverhead);
  rectangle(out, x1, y, x2 - x1, height - gap, colour);
  if (x3 - x2 > 0.05) rectangle(out, x2, y, x3 - x2, height - gap, all_to_all_colour());
  // Where one sequence ends and the next begins, as long as that can be seen.
  if (g.sequences.size() > 1 && height >= 6 &&
      (x2 - x1) / static_cast<double>(g.sequences.size()) >= 2) {
    std::string lines;
    double work = 0;
    for (std::size_t n = 0; n + 1 < g.sequences.size(); ++n) {
      TokenSums sums;
      sums.add(static_cast<double>(report.lengths[static_cast<std::size_t>(g.sequences[n])]));
      work += report.cluster.costs.compute_seconds(g.degree, sums) - report.cluster.costs.b1;
      lines += fmt::format("M{} {}v{}", px(p.x(start + overhead + work)), px(y), px(height - gap));
    }
    fmt::format_to(std::back_inserter(out), "<path stroke=\"{}\" stroke-width=\"0.7\" d=\"{}\"/>\n",
                   hex(mix(colour, kWhite, 0.5)), lines);
  }
  // Sequences over the overhead, the degree over the compute.
  const double size = std::min(11.0, height - 3);
  const auto label = [&](double left, double right, Rgb background, const std::string& words) {
    if (size < 7 || width_of(words, size) + 4 > right - left) return;
    text(out, (left + right) / 2, y + (height - gap) / 2 + size * 0.36,
         fmt::format("font-size=\"{}\" text-anchor=\"middle\" fill=\"{}\"", px(size),
                     hex(readable_on(background))),
         words);
  };
  label(x0, x1, kOverhead, fmt::format("{}", g.sequences.size()));
  label(x1, x2, colour, fmt::format("SP{}", g.degree));
  out += "</g>\n";
}

void draw_axis(std::string& out, const Picture& p, std::size_t band) {
  const double top = p.top(band), bottom = top + p.height();
  const double step = nice_step(p.seconds / (kPlot / 80));
  std::string labels;
  for (int k = 0; k * step <= p.bands[band].seconds * (1 + 1e-9); ++k)
    text(labels, p.x(k * step), bottom + 15, "", tidy(k * step));
  fmt::format_to(std::back_inserter(out),
                 "<g font-size=\"11\" fill=\"{}\" text-anchor=\"middle\">\n{}</g>\n",
                 hex(kFaintInk), labels);
  const int every =
      std::max(1, static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::ceil(14 / p.rank)))));
  labels.clear();
  for (int rank = 0; rank < p.report.cluster.devices; rank += every)
    text(labels, p.left - 6, top + rank * p.rank + std::min(10.0, 3 + every * p.rank / 2), "",
         fmt::format("{}", rank));
  fmt::format_to(std::back_inserter(out),
                 "<g font-size=\"11\" fill=\"{}\" text-anchor=\"end\">\n{}</g>\n", hex(kFaintInk),
                 labels);
}

void draw_band(std::string& out, const Picture& p, std::size_t number) {
  const Band& band = p.bands[number];
  const double top = p.top(number);
  rectangle(out, p.left, top, p.x(band.seconds) - p.left, p.height(), kIdle);
  double start = 0;
  for (std::size_t m = band.first; m < band.last; ++m) {
    const PlannedMicrobatch& microbatch = p.microbatches[m];
    const double x = p.x(start), width = p.x(start + microbatch.seconds) - x;
    std::size_t sequences = 0;
    for (const PlannedGroup& group : microbatch.groups) {
      sequences += group.group.sequences.size();
      draw_group(out, p, group, start, top + group.group.first_rank * p.rank);
    }
    start += microbatch.seconds;
    fmt::format_to(std::back_inserter(out), "<path stroke=\"{}\" d=\"M{} {}V{}\"/>\n",
                   hex(kFaintInk), px(x), px(top - kHead + 4), px(top + p.height()));
    const auto head = [&](double y, Rgb ink, std::initializer_list<std::string> choices) {
      for (const std::string& words : choices)
        if (width_of(words, 11) + 6 <= width)
          return text(out, x + 4, y, fmt::format("font-size=\"11\" fill=\"{}\"", hex(ink)), words);
    };
    head(top - 18, kInk,
         {fmt::format("{}: {}", m, counted(static_cast<std::int64_t>(sequences), "sequence")),
          fmt::format("{}: {}", m, sequences), fmt::format("{}", m)});
    head(top - 5, kFaintInk, {mix_of(microbatch)});
  }
  draw_axis(out, p, number);
}

// --- Beside the plot ---------------------------------------------------------------------------

struct Bar {
  std::string name;
  double seconds = 0;
  Rgb colour;
};

std::vector<Bar> bars_of(const BatchReport& report) {
  const Rgb own = kind_colour(OpKind::F, 0, 1), ada = kind_colour(OpKind::I, 0, 1);
  const Rgb grey = kind_colour(OpKind::Update, 0, 1);
  std::vector<Bar> bars = {{report.strategy, report.seconds(), own}};
  const auto filled = [](const BatchReport::Baseline& baseline) {
    return fmt::format("{:.0f} % full", 100 * baseline.fill);
  };
  if (const auto& best = report.batch_ada; best && best->seconds)
    bars.push_back({fmt::format("batch-ada: groups of {}, {}", best->degree, filled(*best)),
                    *best->seconds, ada});
  for (auto fixed = report.fixed.rbegin(); fixed != report.fixed.rend(); ++fixed)
    if (fixed->seconds)
      bars.push_back({fmt::format("groups of {}, {}", fixed->degree, filled(*fixed)),
                      *fixed->seconds, mix(grey, kWhite, fixed->fill < 1 ? 0 : 0.4)});
  return bars;
}

// The degrees whose groups are too small for some sequence.
std::string too_small(const BatchReport& report) {
  std::vector<std::string> degrees;
  for (const int degree : report.cluster.degrees)
    if (std::none_of(report.fixed.begin(), report.fixed.end(),
                     [&](const auto& fixed) { return fixed.degree == degree && fixed.seconds; }))
      degrees.push_back(fmt::format("{}", degree));
  return join(degrees, ", ");
}

void draw_bars(std::string& out, const Picture& p, const std::vector<Bar>& bars, double left) {
  double most = 0;
  for (const Bar& bar : bars)
    most = std::max(most, bar.seconds);
  out += fmt::format("<g font-size=\"11\" fill=\"{}\">\n", hex(kInk));
  text(out, left, kTop + 14, fmt::format("fill=\"{}\"", hex(kFaintInk)), "seconds of the batch");
  double y = kTop + kHead;
  for (const Bar& bar : bars) {
    text(out, left, y + 8, "", bar.name);
    const double width = bar.seconds / most * (kBars - 90);
    rectangle(out, left, y + 13, width, 11, bar.colour);
    text(out, left + width + 6, y + 22, "",
         &bar == &bars.front()
             ? tidy(bar.seconds)
             : fmt::format("{} ({:.2f} x)", tidy(bar.seconds), bar.seconds / p.report.seconds()));
    y += kBarPitch;
  }
  if (const std::string degrees = too_small(p.report); !degrees.empty())
    text(out, left, y + 8, fmt::format("fill=\"{}\"", hex(kFaintInk)),
         fmt::format("too small for a sequence: groups of {}", degrees));
  // How far the plan could still get.
  if (const auto bound = p.report.bound())
    fmt::format_to(std::back_inserter(out),
                   "<path stroke=\"{}\" stroke-width=\"1.6\" d=\"M{} {}v15\"><title>bound: {} "
                   "s</title></path>\n",
                   hex(kInk), px(left + *bound / most * (kBars - 90)), px(kTop + kHead + 11),
                   tidy(*bound));
  out += "</g>\n";
}

void draw_legend(std::string& out, const BatchReport& report) {
  double x = kMargin;
  const double y = kMargin + 66;
  const auto words = [&](std::string_view what) {
    text(out, x + 5, y, "", what);
    x += 5 + 6.4 * static_cast<double>(what.size()) + 18;
  };
  const auto swatch = [&](Rgb colour, double width) {
    rectangle(out, x, y - 11, width, 12, colour);
    x += width;
  };
  fmt::format_to(std::back_inserter(out), "<g font-size=\"12\" fill=\"{}\">\n", hex(kInk));
  swatch(kOverhead, 14);
  words("overhead (with the number of sequences)");
  for (const int degree : report.cluster.degrees)
    swatch(degree_colour(report.cluster, degree), 10);
  words(fmt::format("compute of groups of {} to {} (SP{} to SP{})", report.cluster.degrees.front(),
                    report.cluster.degrees.back(), report.cluster.degrees.front(),
                    report.cluster.degrees.back()));
  swatch(all_to_all_colour(), 14);
  words("all-to-all");
  swatch(kIdle, 14);
  words("idle");
  swatch(kInk, 2);
  words("bound");
  out += "</g>\n";
}

}  // namespace

std::string batch_svg(const BatchReport& report) {
  const Picture p = lay_out(report);
  const std::vector<Bar> bars = bars_of(report);
  const double bars_left = report.batch ? p.left + kPlot + kBetween : kMargin;
  const double width = std::max(bars_left + kBars + 30, report.batch ? 0 : 700.0) + kMargin;
  const double plot_end = p.bands.empty() ? kTop : p.top(p.bands.size() - 1) + p.height() + kFoot;
  const double bars_end = kTop + kHead + kBarPitch * static_cast<double>(bars.size()) + 16;
  const double height = std::max(plot_end, bars_end) + kMargin;
  const std::string title = fmt::format(
      "{}: {} from {} on {}", report.strategy, counted(std::ssize(report.lengths), "sequence"),
      printable(report.source.substr(report.source.rfind('/') + 1)),
      counted(report.cluster.devices, "device"));
  std::string caption = fmt::format("predicted {} s", tidy(report.seconds()));
  if (report.gap())
    caption += fmt::format(", at most {} above the bound; {} of the time is all-to-all",
                           percent(*report.gap()), percent(report.all_to_all_share()));
  else if (report.tensor_context)
    caption += fmt::format(", tensor parallel degree {}, context parallel degree {}",
                           report.tensor_context->tensor, report.tensor_context->context);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" role=\"img\" font-family=\"{2}\">\n<title>{3}</title>\n<desc>{4}</desc>\n"
      "<rect width=\"{0}\" height=\"{1}\" rx=\"8\" fill=\"{5}\"/>\n",
      px(width), px(height), escape_xml(kFontFamily), escape_xml(title), escape_xml(caption),
      hex(kWhite));
  text(out, kMargin, kMargin + 16,
       fmt::format("font-size=\"20\" font-weight=\"600\" fill=\"{}\"", hex(kInk)), title);
  text(out, kMargin, kMargin + 38, fmt::format("font-size=\"13\" fill=\"{}\"", hex(kFaintInk)),
       caption);
  if (report.batch) draw_legend(out, report);
  for (std::size_t band = 0; band < p.bands.size(); ++band)
    draw_band(out, p, band);
  if (!p.bands.empty())
    text(out, p.left + kPlot, plot_end - kFoot + 32,
         fmt::format("font-size=\"11\" fill=\"{}\" text-anchor=\"end\"", hex(kFaintInk)),
         p.bands.size() > 1 ? "time of a row (s), by rank" : "time (s), by rank");
  draw_bars(out, p, bars, bars_left);
  return out + "</svg>\n";
}

}  // namespace sluice
