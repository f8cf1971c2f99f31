// Between the fused and the split form of the backward pass.
#pragma once

#include "sluice/schedule/schedule.h"

namespace sluice {

// Every B becomes I, W in place; in a group I stays and W follows the group.
Schedule split_backward(const Schedule& schedule);

// Every I directly followed by its own W becomes B; the rest stays split. Groups are left alone.
Schedule fuse_backward(const Schedule& schedule);

// Every W moves up, directly behind its own I; behind the whole group, where the I is in one. As
// nothing waits for a W, a valid schedule stays valid. With fuse_backward after it, a stash is
// gone as soon as it can be.
Schedule pull_weight_gradients(const Schedule& schedule);

}  // namespace sluice
