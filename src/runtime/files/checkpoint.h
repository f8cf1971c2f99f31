// A saved checkpoint, open for reading. What is opened is whole: its manifest verifies, its files
// are there with the sizes it says. Whether their bytes are the ones saved takes reading them all:
// verify(). Everything wrong is a UserError bad_data naming the file, or the tensor, and both
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/runtime/files/manifest.h"
#include "sluice/runtime/files/safetensors.h"

namespace sluice {

// What a tensor of a checkpoint is, by its name.
enum class TensorRole {
  weight,  // "head.weight"
  state,   // of the optimizer: "head.weight/master"
  older    // a weight as it was some updates before: "head.weight/before-1", or was predicted to be
};
TensorRole role_of(std::string_view name);
inline constexpr std::string_view kOlderMark = "/before-", kPredictedMark = "/predicted";

class Checkpoint {
 public:
  // `folder` is the checkpoint's own, such as RUN/step-00000010.
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }  // whole, by name
  const TensorSpec* find(std::string_view name) const;                 // nullptr when there is none

  // Reads every file once: hashes, and headers against the manifest. One rank does it for all; it
  // holds one file open at a time.
  void verify() const;

  // A box of a tensor of this checkpoint, row by row, from whichever shards hold parts of it; so a
  // run of another mesh reads just what it needs. `into` has exactly its bytes. Safe from several
  // threads.
  void read_box(const TensorSpec& tensor, const Box& box, std::span<std::byte> into) const;

 private:
  struct Place {
    std::size_t shard;
    const TensorPiece* piece;
  };
  std::unique_ptr<SafetensorsFile> open_shard(std::size_t shard) const;  // checked
  const SafetensorsFile& shard_file(std::size_t shard) const;            // opened once, and kept

  std::string folder_;
  Manifest manifest_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string_view, std::vector<Place>> places_;
  mutable std::mutex mutex_;  // guards files_
  mutable std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace sluice
