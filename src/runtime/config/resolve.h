// What stands for a value that a configuration leaves to us; what is given stays.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/config/config.h"

namespace sluice {

int kv_heads_of(const ModelConfig& model);
int ffn_dim_of(const ModelConfig& model);
std::int64_t data_ranks_of(const Config& config);
int microbatches_of(const Config& config);  // of one pipeline
int slices_of(const ParallelismConfig& parallelism);
// Equal ones where none are given, the first ones one token longer where the length does not
// divide.
std::vector<int> slice_sizes_of(const Config& config);

}  // namespace sluice
