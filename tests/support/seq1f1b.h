// The cost model of Seq1F1B's public code (arXiv 2406.03488), as far as tests compare with it. Its
// forward of n tokens that end at position x costs c n + a (n x - n^2 / 2), its backward twice
// that. Ours counts FLOPs of F, I and W (cost/slices.h) and rounds to the nearest multiple; it
// rounds every slice down, from the last one on.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "sluice/cost/slices.h"

namespace sluice::test {

struct Seq1F1BModel {
  std::int64_t layers, dim, heads, vocab_size;
  std::int64_t multiple;  // of tokens: its tensor-parallel degree

  double c() const {
    const auto h = static_cast<double>(dim);
    return 4 * h * static_cast<double>(vocab_size) + static_cast<double>(layers) * 24 * h * h;
  }
  double a() const {
    return static_cast<double>(layers * heads) * (4 * static_cast<double>(dim / heads) + 3);
  }
  // The same in our terms: n x - n^2 / 2 is half of end^2 - begin^2.
  WorkTerms terms() const { return {c(), a() / 2}; }

  // Its solver.
  std::vector<std::int64_t> slices(std::int64_t length, int slices) const {
    const double share = terms().of(0, length) / slices;
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(slices));
    std::int64_t end = length;
    for (std::size_t slice = sizes.size(); --slice > 0;) {
      // The small root of (a/2) n^2 - (a end + c) n + share = 0.
      const double b = a() * static_cast<double>(end) + c();
      const double root = (b - std::sqrt(b * b - 2 * a() * share)) / a();
      sizes[slice] = static_cast<std::int64_t>(root) / multiple * multiple;
      end -= sizes[slice];
    }
    sizes[0] = end;
    return sizes;
  }
};

inline constexpr Seq1F1BModel kSeq1F1B2B7 = {32, 2560, 32, 32000, 1};
inline constexpr Seq1F1BModel kSeq1F1B7B = {32, 4096, 32, 32768, 8};
inline constexpr Seq1F1BModel kSeq1F1B13B = {40, 5120, 40, 32768, 8};
inline constexpr Seq1F1BModel kSeq1F1B30B = {64, 6144, 64, 32768, 8};

}  // namespace sluice::test
