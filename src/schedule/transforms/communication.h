// Adds sends and receives to a compute-only schedule, or takes them away again.
//
// Lowering is one global pass: devices take turns, each appending its next op (or group) as soon as
// the op's inputs exist; right there the pass appends the SEND to the producer's program and the
// RECV to the consumer's. Because every receive is placed at the moment of its send, the order in
// which ops were placed is a proof that the lowered schedule cannot deadlock, even when a send ends
// only once its receive is posted.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace sluice {

struct Lowered {
  Schedule schedule;
  // Per device, how many ops of its compute-only program were placed. Less than all of them means
  // that the next op waits for an input that never comes: missing, or in a cycle.
  std::vector<std::size_t> placed;
  bool complete = true;
};

// REQUIRES: every op is in range and on its own device. Existing communication ops are not allowed.
Lowered add_communication(const Schedule& schedule);

// The same schedule without SEND and RECV ops.
Schedule strip_communication(const Schedule& schedule);

// Where the result of `op` goes: the op kinds that carry it to another device. Returns false when
// nothing is sent: last stage, first stage, or a neighbour on the same device.
struct Transfer {
  Op send;
  Op recv;
  int from = 0;
  int to = 0;
};
bool transfer_of(const Op& op, const Schedule& schedule, Transfer& transfer);

}  // namespace sluice
