// Temporaries: what a rank allocates inside an op, beyond what is there before it and beyond what
// it leaves. An estimate, from the largest moments of each op and without what kernels take inside
// themselves, for attention over pieces (slices, packed documents), which takes the most; a test
// holds it against the allocator.
#pragma once

#include <cstdint>
#include <span>

#include "cost/model_costs.h"

namespace sluice {

// Tokens whose logits the head holds at a time, of so many words each.
std::int64_t head_chunk(std::int64_t words, bool gpu);
// Tokens whose MLP a block on a GPU computes at a time, where it computes that again in the
// backward.
inline constexpr std::int64_t kMlpChunk = 16384;

// Of a block with the stash query's tokens.
struct OpWorkspace {
  std::int64_t f = 0, i = 0, w = 0;
};
OpWorkspace block_workspace(const StashQuery& query);
OpWorkspace embedding_workspace(const StashQuery& query);
OpWorkspace head_workspace(const StashQuery& query);

// The largest over all ops of these stages. The update takes none.
std::int64_t workspace_bytes(const StagedModel& model, const Schedule& schedule,
                             std::span<const int> stages);

}  // namespace sluice
