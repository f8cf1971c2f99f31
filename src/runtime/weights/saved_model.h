// What lies with the weights of a checkpoint: its configuration, and the files of the tokenizer.
#pragma once

#include <string>

#include "sluice/config/config.h"
#include "sluice/runtime/files/checkpoint.h"

namespace sluice {

// The configuration of the run that saved it. Throws UserError (3).
Config config_of(const Checkpoint& checkpoint);

// Completes a configuration from the checkpoint that its run would load (checkpoint.load and
// checkpoint.folder), if there is one: each key of [model] that neither the file nor a flag states
// takes the checkpoint's value, and its origin says so. Throws UserError (3) for a stated value
// that contradicts the checkpoint. Reads the manifest only: whether the weights are whole is for
// whoever loads them.
void take_model_from_checkpoint(LoadedConfig& config);

// Throws UserError (3), naming each key that differs, unless the model of `config` is the
// checkpoint's: every key of [model] counts but dropout, which is a matter of training, those that
// the shape does not read, and llama's positions, which limit no weight.
void check_same_model(const Checkpoint& checkpoint, const Config& config);

// What of `config`, resolved, a run that goes on from the checkpoint does with other values than
// the run that saved it: "optimizer.lr 0.001 -> 0.0005, debug.seed 0 -> 1". Where it reads the
// model from and where it writes to is left out, and so is what it is run by.
std::string changed_settings(const Checkpoint& checkpoint, const Config& config);

inline constexpr const char* kTokenizerName = "tokenizer.json";

// Files of a Hugging Face folder that belong to its tokenizer. Training uses the first alone; the
// others travel with the weights, from import to export.
inline constexpr const char* kTokenizerFiles[] = {kTokenizerName, "tokenizer_config.json",
                                                  "special_tokens_map.json", "chat_template.jinja",
                                                  "chat_template.json"};
inline constexpr const char* kGenerationConfigName = "generation_config.json";
inline constexpr const char* kTokenIdsName = "hf_token_ids.json";  // ours: of read_hf_token_ids

// The path of the file `name` in a checkpoint's folder or, where that of a whole run lies, in the
// one above it; "" where there is none. `folder` may also be the one above.
std::string file_beside(const std::string& folder, const char* name);
inline std::string tokenizer_of(const std::string& folder) {
  return file_beside(folder, kTokenizerName);
}

// Copies the file at `path` into a folder, as `name`.
void copy_file(FileSystem& files, const std::string& path, const std::string& folder,
               const std::string& name);

// Copies into a run's folder what an export of its model needs: the tokenizer's files, and, where
// the tokenizer is the loaded checkpoint's, that checkpoint's token numbers and generation_config.
// `tokenizer` is data.tokenizer, and `loaded` the checkpoint whose weights it starts from; "":
// none.
void copy_model_files(FileSystem& files, const std::string& tokenizer, const std::string& loaded,
                      const std::string& folder);

}  // namespace sluice
