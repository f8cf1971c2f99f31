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

// Adds a flag whose value must be a whole number (or a number) in a range. `flag` may be several
// names joined by commas; errors use the first that begins with "--".
CLI::Option* add_int(CLI::App& app, const std::string& flag, int& target, int least, int most,
                     const std::string& help);
void add_number(CLI::App& app, const std::string& flag, double& target, double least, double most,
                const std::string& help);
// The same for a text, which must not be empty.
CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& target,
                      const std::string& help);

// -d, -m: the size of every pipeline.
void add_size(CLI::App& app, int& devices, int most_devices, int& microbatches,
              int most_microbatches);

// Throws where `flag` is given without the other flag that it needs.
void check_needs(bool given, std::string_view flag, bool there, std::string_view needed);

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
  std::string times_flag = "--times";
  bool times_given = false;
  bool redeal = false;  // the layers of the costs file, to the stages of the schedule

  void add(CLI::App& app, const std::string& times_help);
  void add_reduce_time(CLI::App& app);
  void check() const;  // contradicting flags
  // REQUIRES: check(). `tokens`: of a sequence, where the user states it; 0: unknown. Throws
  // UserError for a costs file of other sequences, or of other stages.
  Costs costs(const Schedule& schedule, std::int64_t tokens) const;
};

// One line on what a costs file was measured on, or that it does not say so.
std::string measured_on_note(const std::string& file, const Costs& costs);
// Throws UserError where the file was measured with sequences of another length than `tokens`
// (0: unknown).
void check_measured_length(const Costs& costs, std::int64_t tokens);

// --tokens, --slices, --slice-sizes: how a microbatch is cut.
struct SliceFlags {
  int slices = 1;
  int tokens = 4096;
  std::vector<std::int64_t> sizes;

  bool given() const { return (option_ && option_->count() > 0) || !sizes.empty(); }
  // Tokens of a sequence where the user states them, else 0.
  std::int64_t stated_tokens() const {
    return (tokens_option_ && tokens_option_->count() > 0) || !sizes.empty() ? tokens : 0;
  }

  void add(CLI::App& app, const std::string& help);
  void check();  // sums and counts; sets slices from the sizes

 private:
  const CLI::Option* option_ = nullptr;
  const CLI::Option* tokens_option_ = nullptr;
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
