// Temporaries: what a rank allocates inside an op, beyond what is there before it and beyond what
// it leaves. An estimate, from the largest moments of each op and without what kernels take inside
// themselves, for attention over pieces (slices, packed documents), which takes the most; a test
// holds it against the allocator.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/run/op_workspace.h"
#include "sluice/run/plan.h"

namespace sluice {

OpWorkspace block_workspace(const RunPlan& plan, const TokenShare& share);
OpWorkspace embedding_workspace(const RunPlan& plan, std::int64_t tokens);
OpWorkspace head_workspace(const RunPlan& plan, std::int64_t tokens);

// The largest over all ops of these stages. The update takes none.
std::int64_t workspace_bytes(const RunPlan& plan, std::span<const int> stages);

}  // namespace sluice
