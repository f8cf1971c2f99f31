// Models that go by a name: their shapes, to price a schedule without a configuration.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sluice/cost/model_shape.h"

namespace sluice {

// By name, in lower case; null where none has it.
const ModelShape* known_model(std::string_view name);
// Smallest first within a family.
std::vector<std::string> known_model_names();

}  // namespace sluice
