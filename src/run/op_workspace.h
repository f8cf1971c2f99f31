// Temporaries of an op, and the pieces in which large ones are computed.
#pragma once

#include <cstdint>

namespace sluice {

// Tokens whose logits the head holds at a time, of so many words each.
std::int64_t head_chunk(std::int64_t words, bool gpu);
// Tokens whose MLP a block on a GPU computes at a time, where it computes that again in the
// backward.
inline constexpr std::int64_t kMlpChunk = 16384;

// Of a block with so many tokens; and so on.
struct OpWorkspace {
  std::int64_t f = 0, i = 0, w = 0;
};

}  // namespace sluice
