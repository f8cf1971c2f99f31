// The tensors between stages: received and not yet used, made and not yet used or sent, sent and
// perhaps not yet taken by the peer. The gradient that the head gives the last layer is one of
// them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

// Per device, the most bytes that such tensors can hold at once, whatever the speed of the others:
// a replay of the lowered programs in which a sent tensor stays until something this device has
// received proves that it was used. `tensor_bytes` has the size of one tensor by microbatch and
// slice, slices fastest.
// REQUIRES: `lowered` was proved by validate().
std::vector<std::int64_t> peak_buffer_bytes(const Schedule& lowered,
                                            std::span<const std::int64_t> tensor_bytes);

}  // namespace sluice
