// Recognises the errors that tensors raise when memory runs out.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

namespace sluice {

// Whether a tensor could not be allocated, on a GPU or on the machine. The CPU allocator has no
// error class of its own for that.
inline bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
         std::string_view(error.what_without_backtrace()).find("can't allocate memory") !=
             std::string_view::npos;
}

}  // namespace sluice
