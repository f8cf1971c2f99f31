#include "sluice/config/model.h"

namespace sluice {

ModelShape model_shape(const Config& config) {
  const ModelConfig& model = config.model;
  ModelShape shape;
  shape.family = model.shape;
  shape.layers = model.layers;
  shape.dim = model.dim;
  shape.heads = model.heads;
  shape.kv_heads = model.kv_heads;
  shape.ffn_dim = model.ffn_dim;
  shape.vocab_size = model.vocab_size;
  shape.positions = shape.family == ModelFamily::llama ? 0 : model.positions;
  shape.tied_embeddings = model.tied_embeddings;
  shape.rope_theta = model.rope_theta;
  shape.norm_epsilon = model.norm_epsilon;
  if (model.rope_scaling == RopeScalingKind::llama3)
    shape.rope_scaling = {.factor = model.rope_factor,
                          .low_freq_factor = model.rope_low_freq_factor,
                          .high_freq_factor = model.rope_high_freq_factor,
                          .original_positions = model.rope_original_positions};
  return shape;
}

}  // namespace sluice
