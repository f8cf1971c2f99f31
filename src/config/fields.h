// How a configuration calls what the library calls by its fields.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// A text of the library with the fields of GeneratorOptions as keys: `memory_cap` is
// parallelism.memory_cap, `devices` is parallelism.pipeline_parallel_degree.
std::string as_keys(std::string_view text);

}  // namespace sluice
