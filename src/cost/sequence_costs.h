// What sequences cost that ranks share (FlexSP's model, docs/batch-plans.md): a group of `degree`
// ranks computes, exchanges heads for tokens, and keeps its stash. Fitted by `sluice profile`, or
// the published constants.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Sums over the sequences of a group, each padded.
struct TokenSums {
  double tokens = 0;
  double squares = 0;

  void add(double length) {
    tokens += length;
    squares += length * length;
  }
};

struct SequenceCosts {
  double a1 = 0;  // seconds per token squared
  double a2 = 0;  // seconds per token
  double b1 = 0;  // seconds per microbatch, whoever has how much of it
  double stash_bytes_per_token = 0;
  double state_bytes = 0;  // of a device, however many tokens it has
  double all_to_all_bytes_per_token = 0;
  std::map<int, double> bytes_per_s = {};  // of an all-to-all, by degree; degree 1 needs none
  std::int64_t heads = 0;                  // a degree divides them
  // Where it was measured; empty and 0: not known. Layers of each device of the pipeline, of which
  // a1, a2 and the bytes are those of the busiest; and the ranks that gather parameters from each
  // other, which is part of b1 (1: none do).
  std::vector<std::int64_t> device_layers = {};
  std::int64_t parameter_shards = 0;

  // (1/degree) (a1 sum s^2 + a2 sum s) + b1. REQUIRES: bytes_per_s has the degree, unless it is 1.
  double compute_seconds(int degree, const TokenSums& sums) const;
  double all_to_all_seconds(int degree, const TokenSums& sums) const;
  double seconds(int degree, const TokenSums& sums) const {
    return compute_seconds(degree, sums) + all_to_all_seconds(degree, sums);
  }
  double bytes(int degree, double tokens) const {
    return state_bytes + tokens / degree * stash_bytes_per_token;
  }
  // The most tokens of a device with so much memory; may be negative.
  std::int64_t capacity_tokens(double memory_bytes) const;
};

// Which of a model's states are divided among the devices.
enum class StateSharding { parameters, gradients, states, none };

// The constants that FlexSP's authors measured on A100s of 40 GB (7b, 13b, 30b). Stash and states
// depend on the devices, states also on the longest sequence, which sizes the position table.
// Throws UserError for another name.
SequenceCosts published_sequence_costs(std::string_view model, int devices, std::int64_t max_length,
                                       StateSharding sharding);
std::vector<std::string> published_sequence_models();

}  // namespace sluice
