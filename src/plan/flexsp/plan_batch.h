// A global batch: into how many microbatches it is cut and where, and each one's groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/plan/flexsp/planned_batch.h"
#include "sluice/plan/flexsp/prices.h"

namespace sluice::flexsp {

// Sequences are planned as if each were as long as the longest of its bucket, and then priced,
// moved and swapped by their own lengths: by dynamic programming (many, with the least error), of
// one width, or not at all.
enum class Bucketing { dp, fixed, none };

struct PlanOptions {
  int trials = 5;        // numbers of microbatches that are tried, from the least that may do
  int microbatches = 0;  // so many and no others; 0: the number is chosen
  bool sort = true;      // longest first, before the batch is cut
  bool exact = false;    // every microbatch is searched to the end; without buckets. REQUIRES:
                         // can_be_exact()
  Bucketing bucketing = Bucketing::dp;
  std::int64_t bucket_width = 2048;  // of fixed ones
};

// Throws UserError where a sequence is longer than the largest group holds. REQUIRES: there are
// sequences, all of positive (padded) lengths.
void check_lengths(const Cluster& cluster, std::span<const std::int64_t> lengths);

// Whether there are few enough mixes of groups to search each to the end.
bool can_be_exact(const Cluster& cluster);

// The fastest plan that was found; no slower than any that has groups of one degree, unless the
// order or the buckets are fixed. The same input gives the same plan. It has no microbatches where
// options.microbatches cannot hold the sequences, or are more than these. REQUIRES:
// check_lengths().
PlannedBatch plan_batch(const Cluster& cluster, std::span<const std::int64_t> lengths,
                        const PlanOptions& options = {});

// What no plan with these cuts can be faster than, microbatch by microbatch; of few sequences it is
// proved by search, and if `exact`, of all, by searching to the end.
std::vector<double> lower_bounds(const Cluster& cluster, std::span<const std::int64_t> lengths,
                                 const PlannedBatch& batch, bool exact = false);
// The same whatever the cuts.
double lower_bound_of_any_cuts(const Cluster& cluster, std::span<const std::int64_t> lengths);

}  // namespace sluice::flexsp
