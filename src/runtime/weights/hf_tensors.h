// Where the weights of a model lie among the tensors of a Hugging Face folder of the same model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/cost/parameters.h"
#include "sluice/runtime/files/pieces.h"

namespace sluice {

// One of our weights: `outputs` of the tensor `name` there, which holds several of ours side by
// side where those are not all of its outputs.
struct HfWeight {
  ParameterShape ours;      // its first dimension is the outputs
  std::string name;         // as transformers writes it
  bool transposed = false;  // stored (in, out): GPT-2's matmuls
  Range outputs;
  std::int64_t num_outputs = 0;  // of the whole tensor

  std::vector<std::int64_t> stored_shape() const;  // of the whole tensor
};

// One for every weight that a checkpoint of the model holds (it holds no tied head), in canonical
// order. REQUIRES: gpt2 or llama.
std::vector<HfWeight> hf_weights(const ModelShape& shape);

// Whether a tensor holds no weight: masks and rotary frequencies, which old files have.
bool is_hf_buffer(std::string_view name);

inline constexpr std::string_view kGpt2Prefix = "transformer.";  // some GPT-2 files go without

}  // namespace sluice
