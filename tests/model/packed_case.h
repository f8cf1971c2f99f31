// Packed attention against the plain one, on any device that has the kernels: what both test
// programs, with a GPU and without, ask of it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "sluice/model/attention_packed.h"

namespace sluice::test {

struct PackedCase {
  std::string name;
  SliceBounds bounds;
  std::vector<std::vector<std::int64_t>> starts;  // of each sequence's documents
  std::int64_t long_document = 0;
  std::int64_t heads = 4, kv_heads = 4, head_dim = 16;
  bool kept_apart = false;  // keys and values are no longer in one tensor with the queries

  std::int64_t length() const { return bounds.back(); }
  LocalShape shape() const;
  std::vector<std::int64_t> lengths() const;  // of calls for long documents
};

// Long and short documents, at the end of a sequence and across slices, one sequence and several.
// `unit` is the length from which a document is long.
std::vector<PackedCase> packed_cases(std::int64_t unit);
// The same by chance.
PackedCase random_packed_case(int seed);

// The largest distance of a token's output, or of its gradient by q, k or v, from that of plain
// attention in fp32, relative to its size. All slices forward, then all backward.
struct PackedOutcome {
  double error = 0;
  std::string where;
  std::size_t num_long = 0;  // documents
};
PackedOutcome run_packed(const PackedCase& c, at::Device device);

// What cuDNN's plans depend on, for every call of it while `run` runs: sizes and strides, also
// those of a dimension of one element, as for ATen's cache.
std::set<std::string> plans_used(const std::function<void()>& run);

}  // namespace sluice::test
