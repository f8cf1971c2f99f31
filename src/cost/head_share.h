// Which heads a rank attends with, where several ranks share sequences (Ulysses). Between the
// matmuls and attention, tokens of all heads are exchanged for all tokens of some heads. Ranks have
// equally many query heads. Where query heads share a key head across ranks, each of these ranks
// has a copy of it.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/cost/model_shape.h"

namespace sluice {

struct HeadShare {
  std::int64_t first_head = 0, heads = 0;  // query heads
  // Key heads, ascending: as many query heads of the share in turn use each.
  std::vector<std::int64_t> kv_heads;

  std::int64_t columns(std::int64_t head_dim) const {
    return (heads + 2 * static_cast<std::int64_t>(kv_heads.size())) * head_dim;
  }
};

// Of rank `index` among `degree` that share sequences; `local` is what one tensor rank has.
// REQUIRES: the degree divides its query heads.
HeadShare head_share(const LocalShape& local, int degree, int index);

}  // namespace sluice
