// Flags that several subcommands share, parsed strictly: every mistake is a UserError that names
// the flag, the value and the remedy.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/cli/model_flag.h"
#include "sluice/report/pricing.h"

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

// --times, --model, --comm, --contention, --reduce-time, --keep-after-i, --costs: how a schedule is
// priced.
struct PricingFlags : Pricing {
  std::string times_flag = "--times";

  void add(CLI::App& app, const std::string& times_help);
  void add_reduce_time(CLI::App& app);
  void check() const;  // contradicting flags
};

// --tokens, --slices, --slice-sizes, --slice-multiple: how a microbatch is cut.
struct SliceFlags : Slicing {
  bool sizes_given() const { return sizes_option_ && sizes_option_->count() > 0; }
  bool given() const { return (option_ && option_->count() > 0) || !sizes.empty(); }
  // Tokens of a sequence where the user states them, else 0.
  std::int64_t stated_tokens() const {
    return (tokens_option_ && tokens_option_->count() > 0) || !sizes.empty() ? tokens : 0;
  }

  void add(CLI::App& app, const std::string& help);
  // Unless --tokens says otherwise, sequences are as long as those of the model.
  void take_tokens(const PricingFlags& pricing);
  void check();  // sums and counts; sets slices from the sizes

 private:
  void set_sizes(const std::string& text);

  const CLI::Option* option_ = nullptr;
  const CLI::Option* sizes_option_ = nullptr;
  const CLI::Option* tokens_option_ = nullptr;
};

// "3,4,2" as numbers; throws with the flag's name.
std::vector<double> parse_numbers(std::string_view flag, std::string_view text);

inline constexpr std::size_t kMaxBlockBytes = std::size_t{64} << 20;

}  // namespace sluice::cli
