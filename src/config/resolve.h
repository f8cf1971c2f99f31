// Works out the values that a configuration leaves open. Values that it gives stay as they are.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/config/config.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/staleness.h"

namespace sluice {

// Sequences have lengths of their own.
bool is_ragged(const Config& config);
// Data is held out, and a run is validated on it.
bool validates(const Config& config);

// A copy in which every value is worked out. `sequence_length` is training.sequence_length.
ModelConfig resolve_model(const ModelConfig& model, int sequence_length);

int kv_heads_of(const ModelConfig& model);
int ffn_dim_of(const ModelConfig& model);
std::int64_t data_ranks_of(const Config& config);
int microbatches_of(const Config& config);  // of one pipeline
// In MiB: of every device, or one per device; empty: none.
std::vector<double> memory_caps_of(const ParallelismConfig& parallelism);
int slices_of(const ParallelismConfig& parallelism);
// The given sizes, or else even ones.
std::vector<int> slice_sizes_of(const Config& config);
// The schedule is named and goes on from one update of the weights to the next.
bool goes_on(const Config& config);
// What the configuration asks of its schedule's generator; where steps overlap, of enough windows
// that one repeats. REQUIRES, to generate: a resolved one.
GeneratorOptions generator_options(const Config& config);
// How old the weights may be that a schedule computes with.
StalenessBounds staleness_bounds(const Config& config);

}  // namespace sluice
