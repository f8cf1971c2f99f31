// Memory that is full, as tensors tell it.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

namespace sluice {

// Whether a tensor could not be made for lack of memory, of a GPU or of the machine, whose
// allocator has no class of its own for it.
inline bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
         std::string_view(error.what_without_backtrace()).find("can't allocate memory") !=
             std::string_view::npos;
}

}  // namespace sluice
