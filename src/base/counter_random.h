// Random bits by counter, and rounding by them. The same on the CPU and in CUDA kernels (which are
// compiled with --expt-relaxed-constexpr), so that both give the same bits.
#pragma once

#include <cstdint>

namespace sluice {

// SplitMix64: a counter in, 64 well-mixed bits out.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The bits by which one element is rounded: the lowest 16 for its weight, the next for its first
// moment, the next for its second (a weight is updated by its moments as they are before rounding).
// Only the sum of seed and element counts: the seed of a part that
// begins at some element of a weight is the weight's plus that element.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t element) {
  return mix(seed + element);
}

// An fp32 number (its bits) as bf16, up or down by chance in proportion to what is cut off: the
// mean over `random`, of which the lowest 16 bits count, is the number itself. What bf16 holds
// stays as it is, and so do infinities and NaN.
constexpr std::uint16_t round_stochastic(std::uint32_t number, std::uint64_t random) {
  constexpr std::uint32_t kInfinity = 0x7f800000, kQuiet = 0x00400000;
  if ((number & kInfinity) == kInfinity)
    return static_cast<std::uint16_t>(((number << 9) != 0 ? number | kQuiet : number) >> 16);
  return static_cast<std::uint16_t>((number + static_cast<std::uint32_t>(random & 0xffff)) >> 16);
}

}  // namespace sluice
