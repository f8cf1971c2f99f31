// STAND-IN until the real file is merged.
#pragma once

#include <cstdint>

namespace sluice::flexsp {

enum class Bucketing { dp, fixed, none };

}  // namespace sluice::flexsp
