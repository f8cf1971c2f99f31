// The published way to plan a batch: for each microbatch an integer program over buckets of
// lengths, solved within a time limit by COIN-OR CBC. A reference for plan_batch(), which needs no
// solver: what a time limit cuts short need not come out twice.
#pragma once

#include "sluice/plan/flexsp/plan_batch.h"

namespace sluice::flexsp {

// This build has CBC.
bool has_milp();

// Microbatches are cut by tokens, in `trials` numbers of them, and each is solved for at most so
// many seconds: of 5 trials around 4 microbatches, that is 25 times. What is found then counts,
// proved or not. `exact` means nothing here.
//
// A program has candidates for groups, devices/d of each degree d. It chooses among them and says
// how many sequences of which bucket each one has:
//
//   least C, with m_p = 0 or 1 (the group is there) and whole numbers A_qp >= 0
//     sum_q t_q(d_p) A_qp + b1 m_p <= C              time of each group; t_q is that of the limit
//     sum_q s_q A_qp <= capacity d_p m_p             memory; ties A to m, too
//     sum_p d_p m_p <= devices
//     sum_p A_qp = sequences of the bucket
//     m_p >= m_(p+1) of equal degree                 equal groups have one order
//
// Buckets are of each microbatch. `dp` makes 16, and more where their limits would take more than
// half of the memory that sequences leave. The search begins with the best plan that has groups of
// one degree. Devices that are left over become empty groups, sequences are dealt by bucket, and
// times are those of their own lengths.
//
// Throws UserError where the build has no CBC. REQUIRES: check_lengths(); seconds is positive.
PlannedBatch plan_by_milp(const Cluster& cluster, std::span<const std::int64_t> lengths,
                          const PlanOptions& options, double seconds);

}  // namespace sluice::flexsp
