// How this process treats memory that tensors leave behind.
#pragma once

namespace sluice {

// Keeps freed memory for the next tensor instead of returning it to the system, where every op
// would fetch it again page by page: on two ranks that is 7 % of the time of a step. To be called
// once, before the ranks start.
void keep_freed_memory();

}  // namespace sluice
