// What a checkpoint says about its model beside the weights.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/files/checkpoint.h"

namespace sluice {

// The configuration of the run that saved it. Throws UserError (3).
Config config_of(const Checkpoint& checkpoint);

// Throws UserError (3), naming each key that differs, unless the weights mean in the model of
// `config` what they meant where they were saved. Free to change: what has no say in their shapes
// and is taken up by training (rope_theta, norm_epsilon; of llama also positions).
void check_same_model(const Checkpoint& checkpoint, const Config& config);

// The tokenizer.json in a checkpoint's folder or, where that of a whole run lies, in the one above
// it; "" where there is none. `folder` may also be the one above.
std::string tokenizer_of(const std::string& folder);

// Puts a copy of the tokenizer at `path` into a folder.
void copy_tokenizer(FileSystem& files, const std::string& path, const std::string& folder);

inline constexpr const char* kTokenizerName = "tokenizer.json";

}  // namespace sluice
