// One sequence to train on.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

inline constexpr std::int32_t kNoTarget = -1;  // no loss here

struct Sample {
  std::vector<std::int32_t> tokens;          // (L)
  std::vector<std::int32_t> targets;         // (L) the token to predict here, or kNoTarget
  std::vector<std::int32_t> segment_starts;  // ascending, the first is 0

  bool operator==(const Sample&) const = default;
  std::int64_t num_targets() const;  // may be 0 for packed documents of one token
};

}  // namespace sluice
