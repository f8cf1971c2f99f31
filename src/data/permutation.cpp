#include "sluice/data/permutation.h"

#include "sluice/base/error.h"

namespace sluice {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, odd

}  // namespace

std::uint64_t mix_bits(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Mixed twice, so that neighbouring seeds and neighbouring streams share nothing.
RandomStream::RandomStream(std::uint64_t seed, std::uint64_t stream)
    : state_(mix_bits(mix_bits(seed + kGolden) ^ (stream * kGolden + 1))) {}

std::uint64_t RandomStream::next() {
  state_ += kGolden;
  return mix_bits(state_);
}

std::int64_t RandomStream::below(std::int64_t bound) {
  SLUICE_CHECK(bound > 0, "bound {}", bound);
  const auto range = static_cast<std::uint64_t>(bound);
  // Values below 2^64 mod range would make the small results likelier.
  const std::uint64_t skip = (0 - range) % range;
  std::uint64_t value = next();
  while (value < skip)
    value = next();
  return static_cast<std::int64_t>(value % range);
}

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(static_cast<std::uint64_t>(size)) {
  SLUICE_CHECK(size > 0, "size {}", size);
  while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < size_)
    ++half_bits_;
  RandomStream keys(seed, epoch);
  for (std::uint64_t& key : keys_)
    key = keys.next();
}

std::int64_t Permutation::at(std::int64_t index) const {
  SLUICE_CHECK(index >= 0 && static_cast<std::uint64_t>(index) < size_, "index {} of {}", index,
               size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t mixed = left ^ (mix_bits(right + key) & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace sluice
