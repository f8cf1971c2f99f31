// A weight with its name and its gradient. Names are the model's own and global: the same whatever
// the schedule, the placement or the number of ranks.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct Parameter {
  std::string name;
  at::Tensor value;     // may be a view into a larger weight (q, k, v of one product)
  at::Tensor gradient;  // fp32, same shape, likewise
  bool decay = true;    // weight decay applies: matrices, not norms and biases
};

// Fills a parameter from (seed, its name): normal with the given deviation, drawn by our own
// generator so that it depends on nothing else.
void initialise_normal(at::Tensor& value, std::uint64_t seed, const std::string& name,
                       double deviation);

}  // namespace sluice
