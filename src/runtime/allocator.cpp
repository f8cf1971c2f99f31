#include "runtime/allocator.h"

#include <malloc.h>

#include <limits>

namespace sluice {

void keep_freed_memory() {
  constexpr int kGibibyte = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kGibibyte);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, kGibibyte / 16);
}

}  // namespace sluice
