// Torch's name for a type of numbers.
#pragma once

#include <ATen/ATen.h>

#include "sluice/cost/number_type.h"

namespace sluice {

inline at::ScalarType scalar_type(NumberType type) {
  return type == NumberType::bfloat16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace sluice
