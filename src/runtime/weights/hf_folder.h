// The tensors of a Hugging Face folder: model.safetensors, or the shards that
// model.safetensors.index.json names. Trusts nothing, as the reader of a single file does.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/runtime/files/safetensors.h"

namespace sluice {

class HfFolder {
 public:
  // Opens every file and checks its header, and the index against them. Throws UserError (3).
  explicit HfFolder(const std::string& folder);

  const std::string& folder() const { return folder_; }

  struct Entry {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };
  const std::map<std::string, Entry, std::less<>>& tensors() const { return tensors_; }
  std::vector<std::byte> read(const Entry& entry) const;

 private:
  void open_shards(const std::string& index_path);

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
};

}  // namespace sluice
