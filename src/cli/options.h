// Flags that several subcommands share, parsed strictly: every mistake is a UserError that names
// the flag, the value and the remedy.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cost/costs.h"
#include "schedule/generators/generator.h"
#include "schedule/schedule.h"

namespace sluice::cli {

// Adds a flag whose value must be a whole number (or a number) in a range.
CLI::Option* add_int(CLI::App& app, const std::string& flag, int& target, int least, int most,
                     const std::string& help);
void add_number(CLI::App& app, const std::string& flag, double& target, double least, double most,
                const std::string& help);
// The same for a text, which must not be empty.
CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& target,
                      const std::string& help);

// Throws where `flag` is given and what it is of (another flag) is not.
void check_of(bool given, const std::string& flag, bool there, std::string_view of);

inline constexpr const char* kTimesHelp =
    "times of one stage's F,I,W on a whole microbatch (default 1,1,1; B = I + W)";

// --times, --comm, --contention, --reduce-time, --keep-after-i, --costs: how a schedule is priced.
struct PricingFlags {
  OpTimes times;
  double comm = 0;
  double reduce_time = 0;
  double keep_after_i = 1;
  std::vector<double> contention;
  std::string costs_file;
  bool times_given = false;

  void add(CLI::App& app, bool with_costs, const std::string& times_help);
  void check() const;                           // contradicting flags
  Costs costs(const Schedule& schedule) const;  // REQUIRES: check()
};

// --tokens, --slices, --slice-sizes: how a microbatch is cut.
struct SliceFlags {
  int slices = 1;
  int tokens = 4096;
  std::vector<std::int64_t> sizes;

  bool given() const { return (option_ && option_->count() > 0) || !sizes.empty(); }

  void add(CLI::App& app, const std::string& help);
  void check();  // sums and counts; sets slices from the sizes

 private:
  const CLI::Option* option_ = nullptr;
};

// "3,4,2" as numbers; throws with the flag's name.
std::vector<double> parse_numbers(std::string_view flag, std::string_view text);

// More than anyone needs: a lowered schedule of 512 devices, 1024 stages and 2048 microbatches has
// 160 MiB.
inline constexpr std::size_t kMaxScheduleBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxCostsBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxBlockBytes = std::size_t{64} << 20;

// The whole of a text file; "-" is standard input. Throws UserError, also for a file of more than
// `most_bytes` and for one that is not text.
std::string read_file(const std::string& path, std::size_t most_bytes);

// What `parse` makes of a file's text; a UserError of it begins with the file's name.
template <typename Parse>
auto parse_file(const std::string& path, std::size_t most_bytes, Parse parse) {
  const std::string text = read_file(path, most_bytes);
  try {
    return parse(text);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", path, error.what()), error.code());
  }
}

}  // namespace sluice::cli
