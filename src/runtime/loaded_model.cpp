#include "sluice/runtime/loaded_model.h"

#include "sluice/comm/tensors/scalar_type.h"
#include "sluice/config/model.h"
#include "sluice/runtime/checkpointing.h"
#include "sluice/runtime/weights/saved_model.h"

namespace sluice {

LoadedModel load_model(const std::string& checkpoint, at::Device device) {
  const Checkpoint opened(checkpoint_at(checkpoint));
  LoadedModel model{.folder = opened.folder(),
                    .tokenizer = tokenizer_of(opened.folder()),
                    .config = config_of(opened),
                    .decoder = nullptr};
  if (model.config.model.shape == ModelFamily::bert)
    throw user_error(
        "{} is of shape bert: it fills in masked tokens and cannot continue a text; gpt2 and llama "
        "can",
        opened.folder());
  TensorKind kind = scalar_type(model.config.training.dtype);
  kind.device = device;
  model.decoder = std::make_unique<Decoder>(model_shape(model.config), kind);
  load_weights(opened, model.decoder->parameters(), model.config.model.tied_embeddings);
  return model;
}

}  // namespace sluice
