// Masked-token samples, as BERT trains on them: some tokens are hidden, and only those are
// predicted. Which ones is a pure function of (seed, index of the sample).
#pragma once

#include <cstdint>

#include "sluice/data/sample.h"

namespace sluice {

struct MaskOptions {
  std::uint64_t seed = 0;
  std::int32_t mask_token = 0;
  std::int64_t num_ordinary = 0;   // random replacements come from [0, num_ordinary)
  std::int32_t never_masked = -1;  // such as the end of a document; -1: none
  double fraction = 0.15;          // of the tokens that may be masked
};

// Chooses round(fraction * maskable) tokens, at least one where there is one: of these 80% become
// the mask, 10% a random token, 10% stay. Targets are the chosen tokens, kNoTarget elsewhere.
// Segments stay as they are. Throws UserError (2) for a wrong option.
Sample mask_sample(Sample sample, std::int64_t index, const MaskOptions& options);

}  // namespace sluice
