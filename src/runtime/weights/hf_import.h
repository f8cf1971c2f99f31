// A Hugging Face folder (config.json, safetensors, perhaps tokenizer.json) to a checkpoint of step
// 0 and back. The checkpoint is an ordinary one, without optimizer states. Files of the tokenizer,
// generation_config.json and the token numbers of config.json are kept beside it and exported
// again. Either command can be run again after it was killed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/config/config.h"
#include "sluice/runtime/files/safetensors.h"

namespace sluice {

struct Transferred {
  std::string folder;  // that was written: the checkpoint's own, or Hugging Face's
  ModelConfig model;
  Dtype dtype = Dtype::f32;  // of the weights written
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> files = {};  // names of the others that were copied
};

// Writes `out`/step-00000000. The weights become `dtype` (F32 or BF16), or without one what they
// are: BF16 where all are that, else F32. A tensor that is missing, unknown or of another shape,
// and a model that ours cannot be, is a UserError (3) that names it; `out` with a checkpoint in it
// one of usage.
Transferred import_hf(const std::string& hf_folder, const std::string& out,
                      std::optional<Dtype> dtype);
Transferred import_hf(FileSystem& files, const std::string& hf_folder, const std::string& out,
                      std::optional<Dtype> dtype);

// `checkpoint` as in checkpoint_at(). `out` may be there but must hold no file of a model, unless
// an export that was killed left it: then it is replaced.
Transferred export_hf(const std::string& checkpoint, const std::string& out);
Transferred export_hf(FileSystem& files, const std::string& checkpoint, const std::string& out);

}  // namespace sluice
