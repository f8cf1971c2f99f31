// Reports to standard output or a file.
#pragma once

#include <string>

#include "sluice/cli/options.h"
#include "sluice/report/schedule.h"

namespace sluice::cli {

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

// Writes it in the format; notes, and an invalid schedule's problems, go to standard error (json:
// into the object). Returns ok or invalid_schedule.
ExitCode write_priced(const PricedSchedule& priced, Format format, bool timeline,
                      const OutputFlags& output);

// The problems, one line each, at most `most` of them.
std::string problem_lines(const Validation& validation, std::size_t most = 20);

}  // namespace sluice::cli
