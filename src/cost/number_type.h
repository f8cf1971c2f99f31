// The types of numbers that weights, activations, gradients and optimizer states are kept in.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sluice {

enum class NumberType { float32, bfloat16 };

constexpr auto names_of(NumberType) {
  return std::array<std::string_view, 2>{"float32", "bfloat16"};
}

constexpr std::int64_t bytes_of(NumberType type) { return type == NumberType::float32 ? 4 : 2; }

}  // namespace sluice
