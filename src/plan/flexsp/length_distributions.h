// Lengths of sequences drawn from named distributions: the lengths that batches of real text have,
// where there is no data at hand. The same seed gives the same lengths on every machine and with
// every compiler.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/base/names.h"

namespace sluice::flexsp {

enum class LengthDistribution {
  wikipedia,         // the articles of Wikipedia, in tokens: 214 measured quantiles
  commoncrawl_like,  // 97 % log-normal (6.9, 1.25), 3 % Pareto (0.9) from 8192 tokens on
  github_like        // 95 % log-normal (6.5, 1.4), 5 % Pareto (0.75) from 8192 tokens on
};
constexpr auto names_of(LengthDistribution) {
  return std::array<std::string_view, 3>{"wikipedia", "commoncrawl-like", "github-like"};
}

struct DrawnLengths {
  std::vector<std::int64_t> lengths;
  std::int64_t dropped = 0;  // draws that were longer than the longest
};

// Independent draws, until `count` are at most `longest`. Throws UserError where hardly any is.
// REQUIRES: both are at least 1.
DrawnLengths draw_lengths(LengthDistribution distribution, std::int64_t count, std::uint64_t seed,
                          std::int64_t longest);

}  // namespace sluice::flexsp
