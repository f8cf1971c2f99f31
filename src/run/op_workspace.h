// Temporaries of an op, and the pieces in which large ones are computed.
#pragma once

#include <cstdint>

#include "sluice/run/plan.h"

namespace sluice {

// Tokens whose logits the head holds at a time, of so many words each.
std::int64_t head_chunk(std::int64_t words, bool gpu);
// Of a block's `tokens`, those whose MLP it computes at a time: all, except on a GPU where nothing
// of the MLP is kept for the backward and all at once would take much memory.
std::int64_t mlp_chunk(const RunPlan& plan, std::int64_t tokens);

// Of a block with so many tokens; and so on.
struct OpWorkspace {
  std::int64_t f = 0, i = 0, w = 0;
};

}  // namespace sluice
