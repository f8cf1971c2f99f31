// Random order without memory: pure functions of a seed, the same on every machine, rank and
// compiler. The standard library's shuffles and distributions promise none of that.
#pragma once

#include <cstdint>

namespace sluice {

// 64 well-mixed bits (the finisher of SplitMix64). A bijection.
std::uint64_t mix_bits(std::uint64_t value);

// Random numbers that are a pure function of (seed, stream, how many were taken).
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream);
  std::uint64_t next();
  // A number in [0, bound), each equally likely. REQUIRES: bound > 0.
  std::int64_t below(std::int64_t bound);

 private:
  std::uint64_t state_;
};

// An order of [0, size): a Feistel network over the next power of four, walked until it falls
// inside. Over 64 at least: a smaller network cannot make every order equally likely. at() takes
// constant time and no memory, so any place of any epoch is found at once.
class Permutation {
 public:
  // REQUIRES: size > 0.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);
  // REQUIRES: 0 <= index < size. A bijection on [0, size).
  std::int64_t at(std::int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t size_;
  int half_bits_ = 3;
  std::uint64_t keys_[kRounds];
};

}  // namespace sluice
