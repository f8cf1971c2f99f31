#include "sluice/cli/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/torch_lowering.h"
#include "sluice/trace/render.h"
#include "sluice/trace/style.h"

namespace sluice::cli {
namespace {

constexpr std::array<std::pair<std::string_view, Format>, 8> kFormats = {
    {{"text", Format::text},
     {"grid", Format::grid},
     {"svg", Format::svg},
     {"html", Format::html},
     {"chrome", Format::chrome},
     {"json", Format::json},
     {"csv", Format::csv},
     {"torch-csv", Format::torch_csv}}};

std::string_view format_name_of(Format format) {
  for (const auto& [name, known] : kFormats)
    if (known == format) return name;
  return "";
}

// "svg" of "a/b.svg"; "" where there is none.
std::string ending_of(const std::string& file) {
  const std::string ending = std::filesystem::path(file).extension().string();
  return ending.empty() ? "" : ending.substr(1);
}

// A file that is named like another format would be taken for that.
void check_ending(const std::string& file, Format format) {
  const std::string ending = ending_of(file);
  const auto fits = [&]() -> std::string_view {
    switch (format) {
      case Format::svg: return "svg";
      case Format::html: return "html";
      case Format::chrome:
      case Format::json: return "json";
      case Format::csv:
      case Format::torch_csv: return "csv";
      case Format::text:
      case Format::grid: return "txt";
    }
    return "";
  }();
  for (const std::string_view known : {"svg", "html", "json", "csv", "pdf", "png"})
    if (ending == known && ending != fits)
      throw user_error("--out is '{}', and the format is {}: name it .{}, or change --format", file,
                       format_name_of(format), fits);
}

UserError write_error(const std::string& where) {
  const int code = errno;
  const bool temporary = code == ENOSPC || code == EDQUOT || code == EIO || code == EFBIG;
  return UserError(fmt::format("cannot write {}: {}", where, std::strerror(code)),
                   temporary ? ExitCode::temporary : ExitCode::usage);
}

void write_all(int file, const std::string& text, const std::string& where) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(file, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw write_error(where);
    done += static_cast<std::size_t>(wrote);
  }
}

std::string numbers_json(const std::vector<double>& values) {
  std::string out = "[";
  for (std::size_t n = 0; n < values.size(); ++n)
    out += (n ? "," : "") + number(values[n]);
  return out + "]";
}

std::string block_json(const BlockBound& bound) {
  std::string lifespans;
  for (std::size_t d = 0; d < bound.lifespans.size(); ++d)
    lifespans += fmt::format("{}[{}]", d ? "," : "", fmt::join(bound.lifespans[d], ","));
  return fmt::format("{{\"period\":{},\"lifespans\":[{}],\"peak_bound\":{}}}", bound.period,
                     lifespans, number(bound.peak));
}

std::string block_line(const BlockBound& bound) {
  constexpr std::size_t kMostChunks = 4;
  const std::vector<int>& spans = bound.lifespans[static_cast<std::size_t>(bound.device)];
  std::vector<int> shown(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(
                                                            std::min(spans.size(), kMostChunks)));
  return fmt::format(
      "building block of period {}: at most {} stage-activations, from {} of {}{} slots on device "
      "{}\n",
      bound.period, number(bound.peak), spans.size() > 1 ? "lifespans" : "a lifespan",
      fmt::join(shown, " + "), shown.size() < spans.size() ? " + ..." : "", bound.device);
}

std::string reductions_json(const Timeline& timeline) {
  std::string out = ",\n  \"reductions\": [";
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    out += d ? ",\n    [" : "\n    [";
    const auto& reductions = timeline.devices[d].reductions;
    for (std::size_t i = 0; i < reductions.size(); ++i)
      out += fmt::format("{}{{\"op\":\"{}\",\"start\":{},\"end\":{}}}", i ? "," : "",
                         timeline.text(reductions[i].op), number(reductions[i].start),
                         number(reductions[i].end));
    out += "]";
  }
  return out + "\n  ]";
}

std::string timeline_json(const Timeline& timeline) {
  std::string out = "[";
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    out += d ? ",\n    [" : "\n    [";
    const auto& spans = timeline.devices[d].spans;
    for (std::size_t i = 0; i < spans.size(); ++i)
      out += fmt::format("{}{{\"op\":\"{}\",\"start\":{},\"end\":{}}}", i ? "," : "",
                         timeline.text(spans[i].op), number(spans[i].start), number(spans[i].end));
    out += "]";
  }
  out += "\n  ],\n  \"messages\": [";
  for (std::size_t n = 0; n < timeline.messages.size(); ++n) {
    const Message& message = timeline.messages[n];
    out += fmt::format("{}{{\"op\":\"{}\",\"from\":{},\"to\":{},\"start\":{},\"end\":{}}}",
                       n ? "," : "", timeline.text(message.op), message.from, message.to,
                       number(message.start), number(message.end));
  }
  out += "]";
  if (has_reductions(timeline)) out += reductions_json(timeline);
  out += ",\n  \"memory\": [";
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    out += d ? ",\n    [" : "\n    [";
    const auto& points = timeline.devices[d].memory;
    for (std::size_t i = 0; i < points.size(); ++i)
      out +=
          fmt::format("{}[{},{}]", i ? "," : "", number(points[i].time), number(points[i].value));
    out += "]";
  }
  out += "\n  ],\n  \"critical_path\": [";
  bool first = true;
  for (const CriticalStep& step : critical_path(timeline)) {
    const Span& span = timeline.devices[static_cast<std::size_t>(step.device)]
                           .spans[static_cast<std::size_t>(step.span)];
    out +=
        fmt::format("{}{{\"device\":{},\"op\":\"{}\",\"start\":{},\"end\":{}}}", first ? "" : ",",
                    step.device, timeline.text(span.op), number(span.start), number(span.end));
    first = false;
  }
  return out + "]";
}

// Columns of the terminal: what it says, else COLUMNS, else 100.
int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::max<int>(size.ws_col, 40);
  if (const char* columns = std::getenv("COLUMNS")) {
    const auto value = parse_int(columns);
    if (value && *value >= 40 && *value <= 10000) return static_cast<int>(*value);
  }
  return 100;
}

bool colour_wanted() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR") &&
         !(term && std::string_view(term) == "dumb");
}

}  // namespace

void OutputFlags::add(CLI::App& app, const std::string& formats) {
  add_text(app, "--format", format_name, formats)->type_name("NAME");
  add_text(app, "--out", out,
           "write to a file, not standard output; without --format, its ending names the format")
      ->type_name("FILE");
}

Format OutputFlags::format(const std::string& allowed) const {
  std::vector<std::string> names;
  for (const std::string_view name : split(allowed, ','))
    names.emplace_back(name);
  std::string wanted = format_name;
  if (wanted.empty()) wanted = format_of_ending(names);
  for (const auto& [name, format] : kFormats)
    if (name == wanted && std::find(names.begin(), names.end(), wanted) != names.end()) {
      check_ending(out, format);
      return format;
    }
  const std::string nearest = nearest_name(wanted, names);
  throw user_error("--format is '{}'{}; needs one of {}", wanted,
                   nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest),
                   join(names, ", "));
}

std::string OutputFlags::format_of_ending(const std::vector<std::string>& names) const {
  const std::string ending = ending_of(out);
  if (ending.empty() || ending == "txt") return names.front();
  if (std::find(names.begin(), names.end(), ending) != names.end()) return ending;
  std::vector<std::string> endings;
  for (const std::string& name : names)
    if (name != "text" && name != "grid" && name != "chrome" && name != "torch-csv")
      endings.push_back("." + name);
  throw user_error("--out is '{}': .{} is no format here; end it in {}, or give --format", out,
                   ending, join(endings, ", "));
}

void OutputFlags::write(const std::string& text) const {
  if (to_standard_output()) {
    write_all(STDOUT_FILENO, text, "standard output");
    return;
  }
  struct stat target {};
  if (::stat(out.c_str(), &target) == 0 && !S_ISREG(target.st_mode)) {
    // A pipe or a device: written to, never replaced.
    const int file = ::open(out.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) throw write_error(fmt::format("'{}'", out));
    try {
      write_all(file, text, fmt::format("'{}'", out));
    } catch (...) {
      ::close(file);
      throw;
    }
    ::close(file);
    return;
  }
  // A link stays a link: what it names is replaced.
  std::error_code unresolved;
  const std::filesystem::path real = std::filesystem::weakly_canonical(out, unresolved);
  const std::string path = unresolved ? out : real.string();
  const std::string partial = fmt::format("{}.partial-{}", path, ::getpid());
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) throw write_error(fmt::format("'{}'", out));
  try {
    write_all(file, text, fmt::format("'{}'", out));
    if (::fsync(file) != 0 && errno != EINVAL && errno != EROFS)
      throw write_error(fmt::format("'{}'", out));
    if (::rename(partial.c_str(), path.c_str()) != 0) throw write_error(fmt::format("'{}'", out));
  } catch (...) {
    ::close(file);
    ::unlink(partial.c_str());
    throw;
  }
  ::close(file);
}

namespace {

// Of all devices over the makespan: what the eye sees of a picture.
double idle_share(const Simulation& sim) {
  double busy = 0;
  for (const DeviceResult& device : sim.devices)
    busy += device.busy;
  const double all = sim.makespan * static_cast<double>(sim.devices.size());
  return all > 0 ? std::max(0.0, 1 - busy / all) : 0;
}

}  // namespace

std::string caption(const PricedSchedule& priced) {
  const Schedule& s = priced.schedule;
  std::string out =
      fmt::format("{}, {}, {}", counted(s.num_devices(), "device"),
                  counted(s.num_stages(), "stage"), counted(s.num_microbatches, "microbatch"));
  if (s.num_slices > 1) out += fmt::format(" of {} slices", s.num_slices);
  if (!s.slice_sizes.empty()) out += fmt::format(" ({})", slice_sizes_text(s.slice_sizes));
  if (s.num_pipes() > 1) out += fmt::format(", {} pipes", s.num_pipes());
  if (!priced.model.empty())
    out += fmt::format(", {} with F,I,W = {:.4g},{:.4g},{:.4g}", printable(priced.model),
                       priced.times.f, priced.times.i, priced.times.w);
  if (!priced.simulation) return out;
  const Simulation& sim = *priced.simulation;
  const std::string_view unit = priced.seconds ? " s" : "";
  out += fmt::format(
      "; makespan {:.6g}{} ({:.1f}% idle), span {:.6g}{}, bubble {:.6g}{} ({:.1f}% of the span), "
      "peak {:.6g} stage-activations",
      sim.makespan, unit, 100 * idle_share(sim), sim.span, unit, sim.bubble, unit,
      100 * sim.bubble_rate, sim.max_peak);
  if (sim.max_peak_bytes > 0) out += fmt::format(" ({:.4g} GiB)", sim.max_peak_bytes / (1 << 30));
  if (!priced.contention.empty()) out += ", with contention";
  if (sim.exposed_reduction > 0)
    out += fmt::format("; {:.6g}{} of the makespan only reduces gradients", sim.exposed_reduction,
                       unit);
  return out;
}

std::string result_json(const PricedSchedule& priced, bool timeline) {
  const Schedule& s = priced.schedule;
  std::string out = "{\n";
  const auto field = [&](std::string_view name, const std::string& value) {
    out += fmt::format("  \"{}\": {},\n", name, value);
  };
  const auto count = [&](std::string_view name, std::size_t value) {
    field(name, fmt::format("{}", value));
  };
  field("schema", "1");
  field("name", json_quote(s.name));
  count("devices", s.programs.size());
  field("stages", fmt::format("{}", s.num_stages()));
  field("stages_per_device", fmt::format("{}", s.placement.stages_per_device()));
  field("microbatches", fmt::format("{}", s.num_microbatches));
  field("slices", fmt::format("{}", s.num_slices));
  if (!s.slice_sizes.empty())
    field("slice_sizes", fmt::format("[{}]", fmt::join(s.slice_sizes, ",")));
  field("pipes", fmt::format("{}", s.num_pipes()));
  count("ops", s.num_compute_ops());
  field("valid", priced.validation.valid() ? "true" : "false");
  std::string problems = "[";
  for (std::size_t n = 0; n < priced.validation.problems.size(); ++n) {
    const Problem& problem = priced.validation.problems[n];
    problems += fmt::format("{}{{\"device\":{},\"position\":{},\"op\":{},\"text\":{}}}",
                            n ? ",\n    " : "\n    ", problem.device, problem.position,
                            json_quote(problem.op), json_quote(problem.text));
  }
  field("problems", problems + "]");
  if (!priced.model.empty()) {
    field("model", json_quote(priced.model));
    field("times", numbers_json({priced.times.f, priced.times.i, priced.times.w}));
  }
  if (priced.simulation) {
    const Simulation& sim = *priced.simulation;
    if (!priced.contention.empty()) field("contention", numbers_json(priced.contention));
    field("makespan", number(sim.makespan));
    field("span", number(sim.span));
    field("ideal", number(sim.ideal));
    field("bubble", number(sim.bubble));
    field("bubble_rate", number(sim.bubble_rate));
    field("bubble_fraction", number(sim.bubble_fraction));
    if (s.has(OpKind::ReduceGrad)) field("exposed_reduction", number(sim.exposed_reduction));
    std::vector<double> peaks, bytes;
    for (const DeviceResult& device : sim.devices) {
      peaks.push_back(device.peak_activations);
      bytes.push_back(device.peak_bytes);
    }
    field("peak_activations", numbers_json(peaks));
    field("max_peak", number(sim.max_peak));
    if (sim.max_peak_bytes > 0) {
      field("peak_bytes", numbers_json(bytes));
      field("max_peak_bytes", number(sim.max_peak_bytes));
    }
  }
  if (priced.block) field("block", block_json(*priced.block));
  field("receive_buffers", fmt::format("[{}]", fmt::join(priced.validation.receive_buffers, ",")));
  std::string placement;
  for (int d = 0; d < s.num_devices(); ++d)
    placement += fmt::format("{}[{}]", d ? "," : "", fmt::join(s.placement.stages_of(d), ","));
  field("placement", "[" + placement + "]");
  out += "  \"programs\": [";
  for (int d = 0; d < s.num_devices(); ++d)
    out += fmt::format("{}\n    \"{}\"", d ? "," : "", s.program_text(d));
  out += "\n  ]";
  if (timeline && priced.simulation)
    out += ",\n  \"timeline\": " + timeline_json(priced.simulation->timeline);
  return out + "\n}\n";
}

bool draws(Format format) {
  return format == Format::grid || format == Format::svg || format == Format::html ||
         format == Format::chrome;
}

std::string render(const PricedSchedule& priced, Format format, bool timeline, bool to_terminal) {
  switch (format) {
    case Format::json: return result_json(priced, timeline);
    case Format::csv: return write_schedule(priced.schedule, TextFlavour::native);
    case Format::torch_csv:
      // PyTorch executes a schedule with communication as it is written, so all it needs is there.
      return write_schedule(
          priced.schedule.has_communication() ? lower_for_torch(priced.schedule) : priced.schedule,
          TextFlavour::torch);
    case Format::text:
    case Format::grid:
    case Format::svg:
    case Format::html:
    case Format::chrome: break;
  }
  SLUICE_CHECK(priced.simulation, "{} is drawn without a timeline", priced.schedule.name);
  const Timeline& drawn = priced.simulation->timeline;
  if (format == Format::svg) return render_svg(drawn);
  if (format == Format::html) return render_html(drawn);
  if (format == Format::chrome) return render_chrome(drawn);
  const std::string grid =
      to_terminal ? render_grid(drawn, {.width = terminal_width(), .colour = colour_wanted()})
                  : render_grid(drawn, {});
  return priced.describe_block ? grid + block_line(*priced.block) : grid;
}

std::string problem_lines(const Validation& validation, std::size_t most) {
  std::string out;
  for (std::size_t n = 0; n < std::min(most, validation.problems.size()); ++n)
    out += validation.problems[n].line() + '\n';
  if (validation.problems.size() > most)
    out += fmt::format("... and {} more (--format json lists all)\n",
                       validation.problems.size() - most);
  return out;
}

}  // namespace sluice::cli
