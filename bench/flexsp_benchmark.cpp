// How fast batches are planned, how far from the best the plans can be, and what they gain over
// groups of one degree, by the model of cost: bench/flexsp_benchmark [SEEDS]. Times are of one
// core.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/plan/flexsp/baselines.h"
#include "sluice/plan/flexsp/length_distributions.h"
#include "sluice/plan/flexsp/plan_batch.h"

namespace sluice::flexsp {
namespace {

struct Case {
  int devices = 64;
  std::int64_t sequences = 512;
  int max_degree = 64;
};

// Of processor time: a shared machine's clock tells of the neighbours.
double milliseconds_since(std::clock_t start) {
  return static_cast<double>(std::clock() - start) * 1e3 / CLOCKS_PER_SEC;
}

struct Statistics {
  double sum = 0, most = 0, least = 1e300;
  int count = 0;
  void add(double value) {
    sum += value;
    most = std::max(most, value);
    least = std::min(least, value);
    ++count;
  }
  double mean() const { return sum / count; }
};

void measure(const Case& c, LengthDistribution distribution, int seeds) {
  constexpr std::int64_t kLongest = 192 * 1024, kPad = 128;
  Cluster cluster{
      .devices = c.devices,
      .capacity_tokens = 6449,
      .degrees = {},
      .costs = published_sequence_costs("7b", c.devices, kLongest, StateSharding::parameters)};
  std::vector<ExcludedDegree> excluded;
  cluster.degrees = usable_degrees(cluster.costs, c.devices, 1, c.max_degree, excluded);
  Statistics gap, planning, bounding, seconds, over_fixed, over_full, over_adapted;
  for (int seed = 0; seed < seeds; ++seed) {
    std::vector<std::int64_t> lengths =
        draw_lengths(distribution, c.sequences, static_cast<std::uint64_t>(seed), kLongest).lengths;
    for (std::int64_t& length : lengths)
      length = padded_to(length, kPad);
    std::clock_t start = std::clock();
    const PlannedBatch batch = plan_batch(cluster, lengths);
    planning.add(milliseconds_since(start));
    start = std::clock();
    double bound = 0;
    for (const double least : lower_bounds(cluster, lengths, batch))
      bound += least;
    bounding.add(milliseconds_since(start));
    gap.add(100 * (batch.seconds / bound - 1));
    seconds.add(batch.seconds);
    const int largest = cluster.degrees.back();
    over_fixed.add(fixed_degree(cluster, lengths, largest, 0.9)->seconds / batch.seconds);
    over_full.add(fixed_degree(cluster, lengths, largest, 1.0)->seconds / batch.seconds);
    over_adapted.add(batch_ada(cluster, lengths, 0.9)->batch.seconds / batch.seconds);
  }
  fmt::print(
      "{:5} {:6} {:17} {:9.1f} {:6.1f} {:9.1f} {:6.1f} {:7.2f} {:6.2f} {:9.3f} {:7.3f} {:7.3f} "
      "{:7.3f}\n",
      c.devices, c.sequences, names_of(distribution)[static_cast<std::size_t>(distribution)],
      planning.mean(), planning.most, bounding.mean(), bounding.most, gap.mean(), gap.most,
      seconds.mean(), over_fixed.mean(), over_full.mean(), over_adapted.mean());
}

}  // namespace
}  // namespace sluice::flexsp

int main(int argc, char** argv) {
  using namespace sluice::flexsp;
  const int seeds = argc > 1 ? static_cast<int>(sluice::parse_int(argv[1]).value_or(0)) : 100;
  if (argc > 2 || seeds < 1) {
    fmt::print(stderr, "usage: flexsp_benchmark [SEEDS, 100 by default]\n");
    return 2;
  }
  fmt::print(
      "7b, 192K, 6449 tokens on each device; ms of processor time; speed over groups of the "
      "largest\n"
      "degree, filled to 0.9 and to 1.0, and over the best degree for the batch (0.9)\n"
      "  N    seq.  lengths            plan ms   most  bound ms   most   gap %   most    s/iter "
      "  f 0.9   f 1.0   batch\n");
  for (const auto distribution :
       {LengthDistribution::wikipedia, LengthDistribution::commoncrawl_like,
        LengthDistribution::github_like})
    measure({}, distribution, seeds);
  for (const auto distribution :
       {LengthDistribution::wikipedia, LengthDistribution::commoncrawl_like,
        LengthDistribution::github_like})
    measure({.devices = 1024, .sequences = 8192}, distribution, std::max(1, seeds / 20));
}
