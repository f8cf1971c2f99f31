#include "sluice/cost/sequence_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace sluice {
namespace {

constexpr std::size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

// Of each term what it adds to one point, as a share of its seconds.
Terms shares_of(const SequencePoint& point) {
  const auto s = static_cast<double>(point.length), n = static_cast<double>(point.count);
  return {n * s * s / point.seconds, n * s / point.seconds, 1 / point.seconds};
}

// Least squares by these terms alone, the others being 0: Gauss-Jordan on the normal equations,
// whose columns have length 1.
bool solve(const std::vector<Terms>& rows, const std::array<bool, kTerms>& used, Terms& out) {
  Terms length{};
  for (const Terms& row : rows)
    for (std::size_t k = 0; k < kTerms; ++k)
      length[k] += row[k] * row[k];
  std::array<std::array<double, kTerms + 1>, kTerms> m{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    m[i][i] = 1;
    if (!used[i]) continue;
    for (const Terms& row : rows)
      m[i][kTerms] += row[i] / std::sqrt(length[i]);
    for (std::size_t j = 0; j < kTerms; ++j) {
      if (!used[j] || i == j) continue;
      for (const Terms& row : rows)
        m[i][j] += row[i] * row[j] / std::sqrt(length[i] * length[j]);
    }
  }
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (std::abs(m[i][i]) < 1e-12) return false;  // these points cannot tell the terms apart
    for (std::size_t j = 0; j < kTerms; ++j) {
      if (i == j) continue;
      const double factor = m[j][i] / m[i][i];
      for (std::size_t k = 0; k <= kTerms; ++k)
        m[j][k] -= factor * m[i][k];
    }
  }
  for (std::size_t i = 0; i < kTerms; ++i)
    out[i] = used[i] ? m[i][kTerms] / m[i][i] / std::sqrt(length[i]) : 0;
  return true;
}

}  // namespace

SequenceFit fit_sequences(std::span<const SequencePoint> points) {
  std::vector<Terms> rows;
  for (const SequencePoint& point : points)
    rows.push_back(shares_of(point));
  const auto error_of = [](const Terms& row, const Terms& terms) {
    double sum = -1;
    for (std::size_t k = 0; k < kTerms; ++k)
      sum += row[k] * terms[k];
    return std::abs(sum);
  };
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 1U << kTerms; ++chosen) {
    const std::array<bool, kTerms> used = {(chosen & 1) != 0, (chosen & 2) != 0, (chosen & 4) != 0};
    // What would cost nothing more the longer it is, planners would put into one group.
    if (!used[0] && !used[1]) continue;
    Terms terms{};
    if (!solve(rows, used, terms)) continue;
    if (*std::min_element(terms.begin(), terms.end()) < 0) continue;
    double squares = 0;
    for (const Terms& row : rows)
      squares += error_of(row, terms) * error_of(row, terms);
    if (squares >= least) continue;
    least = squares;
    best = terms;
  }
  SequenceFit fit{.a1 = best[0], .a2 = best[1], .b1 = best[2]};
  for (const Terms& row : rows) {
    fit.mean_error += error_of(row, best) / static_cast<double>(rows.size());
    fit.largest_error = std::max(fit.largest_error, error_of(row, best));
  }
  return fit;
}

}  // namespace sluice
