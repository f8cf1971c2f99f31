// What a profile of slices says about slices of other sizes.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/cost/costs.h"
#include "sluice/cost/slices.h"

namespace sluice {

// The terms that fit a profile's F + I + W of slices of these sizes best, by least squares; none is
// negative. Throws UserError where all its ops take no time. REQUIRES: as many sizes as slices, at
// least two.
WorkTerms fitted_terms(const Costs& profile, std::span<const std::int64_t> sizes);
// The profile of slices of other sizes, as many: each op takes what its own fit says, and bytes go
// by tokens. REQUIRES: the profile's slice_sizes are known, at least two, with the same sum.
Costs resliced(const Costs& profile, std::span<const std::int64_t> sizes);

}  // namespace sluice
