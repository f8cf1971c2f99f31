// Results as text, and text to standard output or a file.
#pragma once

#include <string>

#include "sluice/cli/options.h"
#include "sluice/schedule/generators/block_bound.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"

namespace sluice::cli {

enum class Format { text, grid, svg, html, chrome, json, csv, torch_csv };

// --format and --out. Without --format, the ending of --out decides, else the first of the formats.
struct OutputFlags {
  std::string format_name;
  std::string out;

  void add(CLI::App& app, const std::string& formats);
  // Throws UserError unless the format is one of `allowed` (comma-separated), and where the ending
  // of --out is that of another.
  Format format(const std::string& allowed) const;
  // To --out (atomically: a temporary file, then a rename) or standard output. Throws UserError
  // with exit code 75 when the disk is full. A pipe or device is written to as it is.
  void write(const std::string& text) const;
  bool to_standard_output() const { return out.empty() || out == "-"; }

 private:
  std::string format_of_ending(const std::vector<std::string>& names) const;
};

// A schedule, its proof, and what it costs. `simulation` is empty when it is invalid.
struct PricedSchedule {
  Schedule schedule;
  Validation validation;
  std::optional<Simulation> simulation;
  bool seconds = false;             // times are seconds
  std::string model;                // of --model; else ""
  OpTimes times;                    // of a stage's ops, with a model
  std::vector<double> contention;   // of the costs
  std::string note;                 // on the costs file, for standard error; else ""
  std::optional<BlockBound> block;  // of a schedule that comes from a building block
  bool describe_block = false;      // in a line under the grid, too
};

// "8 devices, 16 stages, 16 microbatches; makespan 113 (15.0% idle), span 113, bubble 17 (...),
// ..."
std::string caption(const PricedSchedule& priced);

// The JSON object of `schedule` and `simulate`, schema 1.
std::string result_json(const PricedSchedule& priced, bool timeline);

// In the given format. REQUIRES: simulation with a timeline for grid, svg, html, chrome.
// A grid to the terminal takes its width and, where it can, colours.
std::string render(const PricedSchedule& priced, Format format, bool timeline, bool to_terminal);

// True where the format needs a timeline.
bool draws(Format format);

// The problems, one line each, at most `most` of them.
std::string problem_lines(const Validation& validation, std::size_t most = 20);

}  // namespace sluice::cli
