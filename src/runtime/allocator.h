// The memory of tensors on the CPU: freed blocks are kept by size and handed to the next tensor of
// that size.
//
// Two allocators fail here. With malloc's defaults every op returns its memory to the system and
// fetches it again page by page: on two ranks that was 7 % of the time of a step. With malloc told
// to keep memory, the process grew by about one tensor a step: posix_memalign asks for more than it
// returns, so the hole that a tensor leaves is always a little too small for the next tensor of the
// same size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Bytes that a block for `bytes` has: the next of eight sizes per doubling, so at most an eighth of
// a block is unused.
std::size_t block_bytes(std::size_t bytes);

struct TensorMemory {
  std::int64_t used_bytes = 0;  // of blocks that tensors hold
  std::int64_t kept_bytes = 0;  // of blocks that wait for the next tensor
};

// From now on tensors on the CPU get blocks that are kept when they are freed. All kept blocks go
// back to the system where it has no memory left, and where they would be more than twice what
// tensors ever held at once: the sizes in use have changed, then. To be called before the ranks
// start; a second call does nothing.
void keep_freed_memory();

// Of all tensors made since keep_freed_memory().
TensorMemory tensor_memory();

}  // namespace sluice
