// Flags that several subcommands share, parsed strictly: every mistake is a UserError that names
// the flag, the value and the remedy.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/cli/model_flag.h"
#include "sluice/cost/costs.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/schedule.h"

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
  std::optional<NamedModel> model;
  std::int64_t sequence_length = 0;  // of the model's microbatches, from count_model

  void add(CLI::App& app, const std::string& times_help);
  void add_reduce_time(CLI::App& app);
  void check() const;  // contradicting flags
  // Where there is a model, its sequences have so many tokens. Unless --times says otherwise, ops
  // then take what its FLOPs say, of which the F of a mean stage is the unit.
  void count_model(std::int64_t tokens);
  // Of a stage without --times: by the FLOPs of the model, else 1,1,1.
  OpTimes default_times() const;
  // What the slices of a schedule take of an op, by the model's FLOPs; nothing without a model.
  // Throws UserError for slices of a model that takes none.
  SliceShares shares(const Schedule& schedule) const;
  // REQUIRES: check(). `tokens`: of a sequence, where the user states it; 0: unknown. Throws
  // UserError for a costs file of other sequences, or of other stages.
  Costs costs(const Schedule& schedule, std::int64_t tokens) const;
};

// Throws UserError where the file was measured with sequences of another length than `tokens`
// (0: unknown).
void check_measured_length(const Costs& costs, std::int64_t tokens);
// The profile with the slices of the schedule, fitted where it was measured with others (resliced).
// Throws UserError where they make up sequences of different lengths.
Costs with_slices_of(const Schedule& schedule, Costs profile);

// "56960, 30464, 23680, 19968 tokens"; of many slices, the first and the last.
std::string slice_sizes_text(const std::vector<std::int64_t>& sizes);

// --tokens, --slices, --slice-sizes, --slice-multiple: how a microbatch is cut.
struct SliceFlags {
  int slices = 1;
  int tokens = kDefaultTokens;
  std::vector<std::int64_t> sizes;  // empty: even
  bool balanced = false;
  int multiple = 0;  // of tokens, for balanced slices; 0: the default

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
  // Sets the sizes of balanced slices: by the model, else by a fit of the costs file. REQUIRES:
  // check() of both. Throws UserError where neither is to be had.
  void balance(const PricingFlags& pricing);

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
