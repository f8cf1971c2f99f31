// The whole model of a checkpoint in this process, whatever the mesh, the schedule and the device
// it was saved under.
#pragma once

#include <memory>
#include <string>

#include "sluice/config/config.h"
#include "sluice/model/decoder.h"

namespace sluice {

struct LoadedModel {
  std::string folder;                // the checkpoint's own
  std::string tokenizer;             // path of its tokenizer.json; "" where it has none
  Config config;                     // of the run that saved it
  std::unique_ptr<Decoder> decoder;  // in the run's training.dtype
};

// `checkpoint` as in checkpoint_at(). Throws UserError: bad_data for one that cannot be trusted,
// usage for a model that does not go from left to right.
LoadedModel load_model(const std::string& checkpoint, at::Device device = at::kCPU);

}  // namespace sluice
