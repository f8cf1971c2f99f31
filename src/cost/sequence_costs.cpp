#include "sluice/cost/sequence_costs.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {

double SequenceCosts::compute_seconds(int degree, const TokenSums& sums) const {
  return (a1 * sums.squares + a2 * sums.tokens) / degree + b1;
}

double SequenceCosts::all_to_all_seconds(int degree, const TokenSums& sums) const {
  if (degree == 1) return 0;
  const auto found = bytes_per_s.find(degree);
  SLUICE_CHECK(found != bytes_per_s.end(), "no bandwidth of degree {}", degree);
  return all_to_all_bytes_per_token * sums.tokens / degree / found->second;
}

std::int64_t SequenceCosts::capacity_tokens(double memory_bytes) const {
  constexpr double kMost = 1e12;  // more than any device holds
  return static_cast<std::int64_t>(
      std::floor(std::min((memory_bytes - state_bytes) / stash_bytes_per_token, kMost)));
}

namespace {

constexpr double kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;

struct Published {
  std::string_view name;
  double stash_mib_per_token, a1_ms, a2_ms, b1_ms;
  std::int64_t dim, layers;
  double billions_192k, billions_384k;  // weights
};

constexpr Published kPublished[] = {
    {"7b", 4.480441895, 5.128e-6, 0.1839576, 629.3563, 4096, 32, 7.1174468994, 7.8498687744},
    {"13b", 4.220439453, 9.2852e-6, 0.3060189, 1132.5632, 5120, 40, 13.1160545349, 14.0315818787},
    {"30b", 3.417381836, 15.4262e-6, 0.8035742, 2789.3644, 6656, 60, 31.5251388550, 32.7153244019},
};
// On 16 devices every layer's MLP was recomputed.
constexpr double kStashOf7bOn16 = 2.668764648;
// GB/s, by degree: above 8 the devices are on several machines.
constexpr std::pair<int, double> kBandwidths[] = {{2, 119.54}, {4, 104.07}, {8, 96.5},
                                                  {16, 10.33}, {32, 5.94},  {64, 4.87}};

double kept_share(StateSharding sharding, int devices) {
  const double own = 1.0 / devices;
  switch (sharding) {
    case StateSharding::parameters: return own;
    case StateSharding::gradients: return 7.0 / 8 * own + 1.0 / 8;
    case StateSharding::states: return 6.0 / 8 * own + 2.0 / 8;
    case StateSharding::none: return 1;
  }
  return 1;
}

}  // namespace

SequenceCosts published_sequence_costs(std::string_view model, int devices, std::int64_t max_length,
                                       StateSharding sharding) {
  for (const Published& known : kPublished) {
    if (known.name != model) continue;
    const double contexts = (static_cast<double>(max_length) / 1024 - 192) / 192;
    const double billions =
        known.billions_192k + contexts * (known.billions_384k - known.billions_192k);
    const double stash =
        model == "7b" && devices == 16 ? kStashOf7bOn16 : known.stash_mib_per_token;
    SequenceCosts costs{
        .a1 = known.a1_ms / 1000,
        .a2 = known.a2_ms / 1000,
        .b1 = known.b1_ms / 1000,
        .stash_bytes_per_token = stash * kMiB,
        .state_bytes = billions * 16 * kept_share(sharding, devices) * kGiB,
        // Four tensors forward and four backward, of two bytes a number.
        .all_to_all_bytes_per_token = static_cast<double>(8 * 2 * known.layers * known.dim),
        .heads = 64};
    // The constants divide MiB by GB/s and call it milliseconds.
    for (const auto& [degree, rate] : kBandwidths)
      costs.bytes_per_s[degree] = rate * 1000 * kMiB;
    return costs;
  }
  throw user_error("`model` is {}: known are {}", json_quote(model),
                   join(published_sequence_models(), ", "));
}

std::vector<std::string> published_sequence_models() {
  std::vector<std::string> names;
  for (const Published& known : kPublished)
    names.emplace_back(known.name);
  return names;
}

}  // namespace sluice
