// Values for what a configuration leaves to be worked out; what it gives stays as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/config/config.h"

namespace sluice {

// A copy in which no value is left to be worked out. `sequence_length` is training's.
ModelConfig resolve_model(const ModelConfig& model, int sequence_length);

int kv_heads_of(const ModelConfig& model);
int ffn_dim_of(const ModelConfig& model);
std::int64_t data_ranks_of(const Config& config);
int microbatches_of(const Config& config);  // of one pipeline
int slices_of(const ParallelismConfig& parallelism);
// Equal ones where none are given, the first ones one token longer where the length does not
// divide.
std::vector<int> slice_sizes_of(const Config& config);

}  // namespace sluice
