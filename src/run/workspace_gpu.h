// Temporaries on a GPU, as workspace.h has them: fused kernels leave fewer, and long MLPs are
// computed in chunks. Of backwards in one go (B); held against what an H200's allocator saw.
#pragma once

#include "sluice/run/op_workspace.h"
#include "sluice/run/plan.h"

namespace sluice {

OpWorkspace block_workspace_gpu(const RunPlan& plan, std::int64_t tokens);
OpWorkspace embedding_workspace_gpu(const RunPlan& plan);
// Of a head that adds to its weights in F.
OpWorkspace head_workspace_gpu(const RunPlan& plan, std::int64_t tokens);

}  // namespace sluice
