#include "sluice/data/masking.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/error.h"
#include "sluice/data/permutation.h"

namespace sluice {
namespace {

// Keeps the masks apart from the order of the samples, which has streams of the same seed.
constexpr std::uint64_t kMaskSalt = 0x6d61736b;

}  // namespace

Sample mask_sample(Sample sample, std::int64_t index, const MaskOptions& options) {
  if (!(options.fraction > 0 && options.fraction <= 1))
    throw user_error("the masked fraction is {}: needs to be above 0 and at most 1",
                     options.fraction);
  if (options.num_ordinary < 1 || options.mask_token < 0)
    throw user_error(
        "the mask token is {} and there are {} ordinary tokens: needs a mask token and at least "
        "one",
        options.mask_token, options.num_ordinary);
  std::vector<std::size_t> places;
  for (std::size_t n = 0; n < sample.tokens.size(); ++n)
    if (sample.tokens[n] != options.never_masked) places.push_back(n);
  std::fill(sample.targets.begin(), sample.targets.end(), kNoTarget);
  if (places.empty()) return sample;

  RandomStream random(mix_bits(options.seed ^ kMaskSalt), static_cast<std::uint64_t>(index));
  const double share = options.fraction * static_cast<double>(places.size());
  const auto wanted = std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(share)));
  for (std::size_t n = 0; n < wanted; ++n) {  // the front of a Fisher-Yates shuffle
    const auto left = static_cast<std::int64_t>(places.size() - n);
    std::swap(places[n], places[n + static_cast<std::size_t>(random.below(left))]);
    std::int32_t& token = sample.tokens[places[n]];
    sample.targets[places[n]] = token;
    const std::int64_t fate = random.below(10);
    if (fate < 8)
      token = options.mask_token;
    else if (fate == 8)
      token = static_cast<std::int32_t>(random.below(options.num_ordinary));
  }
  return sample;
}

}  // namespace sluice
