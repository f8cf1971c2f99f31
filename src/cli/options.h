// Flags that several subcommands share, parsed strictly: every mistake is a UserError that names
// the flag, the value and the remedy.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/costs.h"
#include "schedule/generators/generator.h"
#include "schedule/schedule.h"

namespace sluice::cli {

// Adds a flag whose value must be a whole number (or a number) in a range.
void add_int(CLI::App& app, const std::string& flag, int& target, int least, int most,
             const std::string& help);
void add_number(CLI::App& app, const std::string& flag, double& target, double least, double most,
                const std::string& help);

// --times, --comm, --keep-after-i, --costs: how a schedule is priced.
struct PricingFlags {
  OpTimes times;
  double comm = 0;
  double keep_after_i = 1;
  std::string costs_file;
  bool times_given = false;

  void add(CLI::App& app, bool with_costs);
  void check() const;                           // contradicting flags
  Costs costs(const Schedule& schedule) const;  // REQUIRES: check()
};

// --tokens, --slices, --slice-sizes: how a microbatch is cut.
struct SliceFlags {
  int slices = 1;
  int tokens = 4096;
  std::vector<std::int64_t> sizes;

  void add(CLI::App& app);
  void check();  // sums and counts; sets slices from the sizes
};

// "3,4,2" as numbers; throws with the flag's name.
std::vector<double> parse_numbers(std::string_view flag, std::string_view text);

// The whole of a file; "-" is standard input. Throws UserError.
std::string read_file(const std::string& path);

}  // namespace sluice::cli
