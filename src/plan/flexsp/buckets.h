// Buckets of lengths: every sequence of a bucket is taken to be as long as the bucket's limit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::flexsp {

struct Buckets {
  std::vector<std::int64_t> limits;  // ascending; the last is the longest length
  std::int64_t error = 0;            // tokens that are added to the sequences, over all of them

  // The number of a length's bucket. REQUIRES: no length is longer than the last limit.
  std::size_t of(std::int64_t length) const;
};

// All of these. REQUIRES: there are lengths, all positive.

// At most so many buckets, with the least error. Exact: a dynamic program over the different
// lengths. REQUIRES: count is positive.
Buckets best_buckets(std::span<const std::int64_t> lengths, int count);

// Buckets of lengths up to width, 2 width, and so on; empty ones are left out. A limit is no longer
// than the longest length. REQUIRES: width is positive.
Buckets fixed_buckets(std::span<const std::int64_t> lengths, std::int64_t width);

// A bucket for every different length: no error.
Buckets no_buckets(std::span<const std::int64_t> lengths);

// Each length as long as its bucket takes it to be.
std::vector<std::int64_t> rounded_up(std::span<const std::int64_t> lengths, const Buckets& buckets);

}  // namespace sluice::flexsp
