#include "sluice/cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "sluice/base/error.h"
#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/data/output_file.h"

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

// A grid to the terminal takes its width and, where it can, colours.
GridOptions grid_options(bool to_terminal) {
  GridOptions options;
  options.remedy = "--format html shows more";
  if (to_terminal) {
    options.width = terminal_width();
    options.colour = colour_wanted();
  }
  return options;
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
  if (to_standard_output())
    write_to_standard_output(text);
  else
    write_text(out, text);
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

ExitCode write_priced(const PricedSchedule& priced, Format format, bool timeline,
                      const OutputFlags& output) {
  if (priced.validation.valid() || format == Format::json)
    output.write(render_schedule(
        priced, format, {.timeline = timeline, .grid = grid_options(output.to_standard_output())}));
  for (const std::string& note : priced.notes)
    say("sluice: {}\n", note);
  if (priced.validation.valid()) return ExitCode::ok;
  if (format != Format::json)
    say("sluice: {} is not a valid schedule\n{}", priced.schedule.name,
        problem_lines(priced.validation));
  return ExitCode::invalid_schedule;
}

}  // namespace sluice::cli
