// How a schedule is priced, and how its microbatches are cut.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/cost/costs.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

inline constexpr int kDefaultTokens = 4096;

// The model that a schedule is priced for.
struct NamedModel {
  std::string name;  // as given
  ModelShape shape;
  int tokens = kDefaultTokens;  // of its sequences, where nothing else says it
};

// By the times of a stage's ops, by a model's FLOPs, or by a costs file.
struct Pricing {
  OpTimes times;
  bool times_given = false;  // else a model says them
  double comm = 0;
  double reduce_time = 0;
  double update_time = 0;
  double keep_after_i = 1;
  std::vector<double> contention;
  std::string costs_file;
  bool redeal = false;  // the layers of the costs file, to the stages of the schedule
  std::optional<NamedModel> model;
  std::int64_t sequence_length = 0;  // of the model's microbatches, from count_model

  // Where there is a model, its sequences have so many tokens. Unless times are given, ops then
  // take what its FLOPs say, of which the F of a mean stage is the unit.
  void count_model(std::int64_t tokens);
  // Of a stage where no times are given: by the FLOPs of the model, else 1,1,1.
  OpTimes default_times() const;
  // What the slices of a schedule take of an op, by the model's FLOPs; nothing without a model.
  // Throws UserError for slices of a model that takes none.
  SliceShares shares(const Schedule& schedule) const;
  // `tokens`: of a sequence, where the user states it; 0: unknown. Throws UserError for a costs
  // file of other sequences, or of other stages.
  Costs costs(const Schedule& schedule, std::int64_t tokens) const;
};

struct Slicing {
  int slices = 1;
  int tokens = kDefaultTokens;      // of a microbatch's sequence
  std::vector<std::int64_t> sizes;  // empty: even
  bool balanced = false;
  int multiple = 0;  // of tokens, for balanced slices; 0: the default

  // Sets the sizes of balanced slices: by the model, else by a fit of the costs file, whose
  // sequences must then have `stated` tokens (0: any). Throws UserError where neither is to be had.
  void balance(const Pricing& pricing, std::int64_t stated);
};

// Throws UserError where the file was measured with sequences of another length than `tokens`
// (0: unknown).
void check_measured_length(const Costs& costs, std::int64_t tokens);
// The profile with the slices of the schedule, fitted where it was measured with others (resliced).
// Throws UserError where they make up sequences of different lengths.
Costs with_slices_of(const Schedule& schedule, Costs profile);

// "56960, 30464, 23680, 19968 tokens"; of many slices, the first and the last.
std::string slice_sizes_text(const std::vector<std::int64_t>& sizes);

}  // namespace sluice
