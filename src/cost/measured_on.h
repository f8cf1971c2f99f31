// What the times of a costs file were measured on. Times of another model price a schedule just as
// well and are just as wrong, so a file says which model, batch and device it is of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/cost/model_shape.h"

namespace sluice {

struct MeasuredOn {
  std::string shape;  // gpt2, llama, bert
  std::int64_t layers = 0, dim = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab_size = 0;
  std::int64_t sequence_length = 0;
  std::int64_t sequences = 0;  // of a microbatch
  std::string dtype;
  std::string recompute;  // the level
  std::int64_t tensor_parallel_degree = 0;
  std::string device;  // cpu or cuda; after a comma how it was used

  void set_model(const ModelShape& model, RecomputeLevel level);

  // "gpt2 of 8 layers, dim 128, ...": one line.
  std::string text() const;
  // The object of the costs file, each line behind `indent`.
  std::string json(const std::string& indent) const;
};

// One entry of MeasuredOn: a number or a text.
struct MeasuredField {
  const char* name;                  // in the file
  bool of_model;                     // stands in the object `model`
  const char* config_key;            // that states it for a run
  std::int64_t MeasuredOn::*number;  // or null
  std::string MeasuredOn::*text;     // or null

  std::string value(const MeasuredOn& on) const;
};
const std::vector<MeasuredField>& measured_fields();

// Every difference between what was measured and the run that wants to use it, as
// "training.dtype is bfloat16 and was float32 when measured". Of the device, its kind alone counts.
std::vector<std::string> measured_differences(const MeasuredOn& measured, const MeasuredOn& run);

}  // namespace sluice
