#include "sluice/model/slice.h"

#include <algorithm>

namespace sluice {

at::Tensor positions_of(std::int64_t num_sequences, std::int64_t begin, std::int64_t end,
                        const Documents& documents) {
  const at::Tensor plain = at::arange(begin, end, at::kLong).expand({num_sequences, end - begin});
  if (documents.single()) return plain.contiguous();
  at::Tensor positions = plain.clone();
  for (std::int64_t s = 0; s < num_sequences; ++s)
    for (const std::int64_t start : documents.starts[static_cast<std::size_t>(s)])
      if (start < end) {
        const std::int64_t from = std::max(start, begin) - begin;
        positions[s].slice(0, from).copy_(at::arange(begin + from - start, end - start, at::kLong));
      }
  return positions;
}

std::int64_t held_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<std::int64_t>(tensor.element_size()) : 0;
}

}  // namespace sluice
