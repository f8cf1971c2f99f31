#include "sluice/cost/head_share.h"

#include "sluice/base/error.h"

namespace sluice {

HeadShare head_share(const LocalShape& local, int degree, int index) {
  SLUICE_CHECK(degree > 0 && local.heads % degree == 0, "{} heads for {} ranks", local.heads,
               degree);
  HeadShare share;
  share.heads = local.heads / degree;
  share.first_head = share.heads * index;
  const std::int64_t users = local.heads / local.kv_heads;  // query heads of a key head
  // Whole groups of users, or a part of one group; else each query head gets a copy of its own.
  const bool whole = share.heads % users == 0, part = users % share.heads == 0;
  const std::int64_t step = whole ? users : part ? share.heads : 1;
  for (std::int64_t head = 0; head < share.heads; head += step)
    share.kv_heads.push_back((share.first_head + head) / users);
  return share;
}

}  // namespace sluice
