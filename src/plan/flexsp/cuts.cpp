#include "sluice/plan/flexsp/cuts.h"

#include <algorithm>
#include <limits>

namespace sluice::flexsp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A run of more than one sequence has at most such a part of all tokens, and of those that a
// microbatch may have.
constexpr double kMostRuns = 1024;
constexpr double kRunsOfMicrobatch = 8;

// Runs of neighbouring sequences; cuts are looked for between them.
struct Runs {
  std::vector<std::size_t> ends;     // 0, and where each run ends
  std::vector<double> tokens, work;  // of all up to there
  std::vector<double> slowest;       // of the run before there
};

Runs runs_of(std::span<const std::int64_t> lengths, const Prices* prices, double most_tokens) {
  double all = 0;
  for (const std::int64_t length : lengths)
    all += static_cast<double>(length);
  // Few sequences are a run each.
  const double most = static_cast<double>(lengths.size()) > kMostRuns
                          ? std::min(all / kMostRuns, most_tokens / kRunsOfMicrobatch)
                          : 0;
  Runs runs{{0}, {0}, {0}, {0}};
  double tokens = 0, work = 0, slowest = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    tokens += static_cast<double>(lengths[i]);
    if (prices) {
      work += prices->least_work(lengths[i]);
      slowest = std::max(slowest, prices->least_load(lengths[i]));
    }
    if (i + 1 < lengths.size() &&
        tokens + static_cast<double>(lengths[i + 1]) - runs.tokens.back() <= most)
      continue;
    runs.ends.push_back(i + 1);
    runs.tokens.push_back(tokens);
    runs.work.push_back(work);
    runs.slowest.push_back(slowest);
    slowest = 0;
  }
  return runs;
}

// best[m][i]: the least cost of the first i runs in m microbatches, whose last one begins at
// from[m][i]. `last_cost` gives the cost of all from that before the last one and runs j to i.
template <typename LastCost>
std::vector<Cuts> best_cuts(const Runs& runs, int most, const LastCost& last_cost) {
  const std::size_t count = runs.ends.size() - 1;
  const std::size_t largest = std::min(static_cast<std::size_t>(most), count);
  std::vector<double> before(count + 1, kInfinity), now;
  before[0] = 0;
  std::vector<std::vector<std::size_t>> from(largest + 1, std::vector<std::size_t>(count + 1, 0));
  std::vector<Cuts> out;
  for (std::size_t m = 1; m <= largest; ++m) {
    now.assign(count + 1, kInfinity);
    for (std::size_t i = m; i <= count; ++i) {
      double slowest = 0;
      for (std::size_t j = i; j-- > m - 1;) {
        slowest = std::max(slowest, runs.slowest[j + 1]);
        const double own = last_cost(j, i, slowest);
        if (own == kInfinity) break;  // and those that begin earlier cost no less
        const double all = last_cost(before[j], own);
        if (all < now[i]) {
          now[i] = all;
          from[m][i] = j;
        }
      }
    }
    std::swap(before, now);
    Cuts cuts;
    if (before[count] < kInfinity)
      for (std::size_t i = count, k = m; k > 0; i = from[k--][i])
        cuts.push_back(runs.ends[i]);
    std::reverse(cuts.begin(), cuts.end());
    out.push_back(std::move(cuts));
  }
  return out;
}

struct LargestTokens {
  const Runs& runs;
  double most_tokens;
  double operator()(std::size_t j, std::size_t i, double) const {
    const double tokens = runs.tokens[i] - runs.tokens[j];
    return tokens > most_tokens ? kInfinity : tokens;
  }
  double operator()(double before, double own) const { return std::max(before, own); }
};

struct SumOfTimes {
  const Runs& runs;
  double overhead, devices, most_tokens;
  double operator()(std::size_t j, std::size_t i, double slowest) const {
    if (runs.tokens[i] - runs.tokens[j] > most_tokens) return kInfinity;
    return overhead + std::max(slowest, (runs.work[i] - runs.work[j]) / devices);
  }
  double operator()(double before, double own) const { return before + own; }
};

}  // namespace

std::vector<Cuts> cut_by_tokens(std::span<const std::int64_t> lengths, int most,
                                double most_tokens) {
  const Runs runs = runs_of(lengths, nullptr, most_tokens);
  return best_cuts(runs, most, LargestTokens{runs, most_tokens});
}

std::vector<Cuts> cut_by_time(const Prices& prices, std::span<const std::int64_t> lengths, int most,
                              double most_tokens) {
  const Runs runs = runs_of(lengths, &prices, most_tokens);
  return best_cuts(
      runs, most,
      SumOfTimes{runs, prices.overhead(), static_cast<double>(prices.devices()), most_tokens});
}

}  // namespace sluice::flexsp
