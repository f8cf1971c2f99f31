#include "sluice/runtime/weights/hf_folder.h"

#include <nlohmann/json.hpp>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/strict_json.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 16 << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

// A file of this very folder, and of its own kind.
bool is_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

HfFolder::HfFolder(const std::string& folder) : folder_(folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (is_there(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const TensorInfo& tensor : files_.back()->tensors())
      tensors_[tensor.name] = {files_.back().get(), &tensor};
  } else if (is_there(index)) {
    open_shards(index);
  } else {
    fail(folder,
         "holds neither model.safetensors nor model.safetensors.index.json: name the folder of a "
         "model; weights in other forms (.bin, .pth, .gguf) have to be saved as safetensors first");
  }
}

void HfFolder::open_shards(const std::string& index_path) {
  const std::string text = InputFile(index_path).read_text(kMaxIndexBytes);
  nlohmann::ordered_json index;
  try {
    index = parse_strict_json(text);
  } catch (const UserError& error) {
    fail(index_path, error.what());
  }
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) fail(index_path, "has no weight_map");
  std::map<std::string, SafetensorsFile*> by_name;
  std::uint64_t total = 0;
  for (const auto& [tensor, name] : map->items()) {
    if (!name.is_string() || !is_shard_name(name.get<std::string>()))
      fail(index_path, fmt::format("weight_map.{} is {}: needs the name of a .safetensors file in "
                                   "this folder",
                                   tensor, name.dump()));
    SafetensorsFile*& file = by_name[name.get<std::string>()];
    if (!file) {
      files_.push_back(std::make_unique<SafetensorsFile>(folder_ + "/" + name.get<std::string>()));
      file = files_.back().get();
    }
    const TensorInfo* info = file->find(tensor);
    if (!info)
      fail(file->path(),
           fmt::format("has no tensor {}, which the index says it has", json_quote(tensor)));
    tensors_[tensor] = {file, info};
    total += info->bytes;
  }
  for (const auto& file : files_)
    for (const TensorInfo& tensor : file->tensors())
      if (const auto found = tensors_.find(tensor.name);
          found == tensors_.end() || found->second.file != file.get())
        fail(file->path(), fmt::format("tensor {} is not in the index", json_quote(tensor.name)));
  const auto metadata = index.find("metadata");
  if (metadata == index.end() || !metadata->is_object()) return;
  const auto said = metadata->find("total_size");
  if (said != metadata->end() && (!said->is_number() || *said != total))
    fail(index_path,
         fmt::format("metadata.total_size is {}, and the tensors have {} bytes: a shard is "
                     "of another model, or the index is wrong",
                     said->dump(), total));
}

std::vector<std::byte> HfFolder::read(const Entry& entry) const {
  std::vector<std::byte> bytes(entry.tensor->bytes);
  entry.file->read(*entry.tensor, bytes);
  return bytes;
}

}  // namespace sluice
