#include "sluice/runtime/weights/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "sluice/base/error.h"

namespace sluice {
namespace {

float from_half(std::uint16_t half) {
  const bool negative = (half & 0x8000) != 0;
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  if (exponent == 31) {  // infinity, or a NaN that keeps its payload
    const std::uint32_t bits = 0x7f800000U | static_cast<std::uint32_t>(fraction) << 13;
    return std::bit_cast<float>(bits | (negative ? 0x80000000U : 0U));
  }
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                   : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return negative ? -size : size;
}

std::uint16_t to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename From, typename To, typename Function>
std::vector<std::byte> each(const std::vector<std::byte>& values, const Function& function) {
  const std::size_t count = values.size() / sizeof(From);
  std::vector<std::byte> out(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, values.data() + i * sizeof(From), sizeof(From));
    const To converted = function(value);
    std::memcpy(out.data() + i * sizeof(To), &converted, sizeof(To));
  }
  return out;
}

float from_bfloat(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

// In squares that stay in the cache, a column of which would be a miss for every element.
template <std::size_t kBytes>
void transpose_elements(const std::byte* from, std::size_t rows, std::size_t columns,
                        std::byte* to) {
  constexpr std::size_t kSide = 32;
  for (std::size_t r0 = 0; r0 < rows; r0 += kSide)
    for (std::size_t c0 = 0; c0 < columns; c0 += kSide)
      for (std::size_t r = r0; r < std::min(rows, r0 + kSide); ++r)
        for (std::size_t c = c0; c < std::min(columns, c0 + kSide); ++c)
          std::memcpy(to + (c * rows + r) * kBytes, from + (r * columns + c) * kBytes, kBytes);
}

}  // namespace

bool is_weight_dtype(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::f16 || dtype == Dtype::bf16;
}

std::vector<std::byte> convert(std::vector<std::byte> values, Dtype from, Dtype to) {
  SLUICE_CHECK(is_weight_dtype(from) && (to == Dtype::f32 || to == Dtype::bf16), "{} to {}",
               dtype_name(from), dtype_name(to));
  if (from == to) return values;
  if (to == Dtype::bf16) {
    if (from == Dtype::f32) return each<float, std::uint16_t>(values, to_bfloat);
    return each<std::uint16_t, std::uint16_t>(
        values, [](std::uint16_t half) { return to_bfloat(from_half(half)); });
  }
  if (from == Dtype::f16) return each<std::uint16_t, float>(values, from_half);
  return each<std::uint16_t, float>(values, from_bfloat);
}

void transpose(std::span<const std::byte> from, std::size_t rows, std::size_t columns,
               std::span<std::byte> to) {
  if (from.empty()) return;
  SLUICE_CHECK(from.size() == to.size(), "{} bytes to {}", from.size(), to.size());
  const std::size_t element = from.size() / (rows * columns);
  if (element == 4) return transpose_elements<4>(from.data(), rows, columns, to.data());
  SLUICE_CHECK(element == 2, "elements of {} bytes", element);
  transpose_elements<2>(from.data(), rows, columns, to.data());
}

}  // namespace sluice
