// Adds sends and receives to a compute-only schedule, or takes them away again.
//
// Lowering is one global pass: devices take turns, each appending its next op (or group) as soon as
// the op's inputs exist; right there the pass appends the SEND to the producer's program and the
// RECV to the consumer's. Because every receive is placed at the moment of its send, the order in
// which ops were placed is a proof that the lowered schedule cannot deadlock, even when a send ends
// only once its receive is posted.
#pragma once

#include <optional>
#include <vector>

#include "sluice/schedule/schedule.h"

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

// The two ops that carry the result of an op from one device to another.
struct SendRecv {
  Op send;
  Op recv;
  int from = 0;
  int to = 0;
};
// Nothing where the result of `op` stays: the output of the last stage, the input gradient of the
// first, a weight gradient, or a neighbour on the same device.
std::optional<SendRecv> send_recv_of(const Op& op, const Schedule& schedule);

}  // namespace sluice
