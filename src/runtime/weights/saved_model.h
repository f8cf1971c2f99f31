// What a checkpoint says about its model beside the weights.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/files/checkpoint.h"

namespace sluice {

// The configuration of the run that saved it. Throws UserError (3).
Config config_of(const Checkpoint& checkpoint);

// The tokenizer.json in a checkpoint's folder or, where that of a whole run lies, in the one above
// it; "" where there is none. `folder` may also be the one above.
std::string tokenizer_of(const std::string& folder);

// Puts a copy of the tokenizer at `path` into a folder.
void copy_tokenizer(FileSystem& files, const std::string& path, const std::string& folder);

inline constexpr const char* kTokenizerName = "tokenizer.json";

}  // namespace sluice
