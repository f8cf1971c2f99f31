// Which errors of storage may pass by themselves.
#pragma once

namespace sluice {

// Whether errno `error` tells of storage that is busy, overloaded or out of reach, not of the file:
// a retry may succeed, and the file may be whole. A command that ends with it exits with 75.
bool is_transient(int error);

}  // namespace sluice
