#include "sluice/runtime/weights/hf_import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "sluice/base/text.h"
#include "sluice/config/model.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "sluice/runtime/weights/convert.h"
#include "sluice/runtime/weights/hf_config.h"
#include "sluice/runtime/weights/hf_folder.h"
#include "sluice/runtime/weights/hf_tensors.h"
#include "sluice/runtime/weights/saved_model.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr int kUsualSequence = 1024;  // of a configuration that nobody has trained with yet

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

// A weight and the tensor that it is (part) of.
struct Source {
  HfWeight weight;
  HfFolder::Entry entry;
};

// Finds tensors by transformers' names, with or without the prefix, and knows which were taken.
class Names {
 public:
  explicit Names(const HfFolder& folder)
      : folder_(folder), bare_(!folder.tensors().contains("transformer.wte.weight")) {}

  const HfFolder::Entry& take(const std::string& canonical) {
    const bool bare = bare_ && canonical.starts_with(kGpt2Prefix);
    const auto found =
        folder_.tensors().find(bare ? canonical.substr(kGpt2Prefix.size()) : canonical);
    if (found == folder_.tensors().end())
      fail(folder_.folder(), fmt::format("has no tensor {}", json_quote(canonical)));
    taken_.insert(found->first);
    return found->second;
  }

  // Throws for a tensor that was not taken, unless it is a buffer.
  void refuse_rest() const {
    for (const auto& [name, entry] : folder_.tensors())
      if (!taken_.contains(name) && !is_hf_buffer(name))
        fail(entry.file->path(),
             fmt::format("tensor {} has no place in the model that config.json describes",
                         json_quote(name)));
  }

 private:
  const HfFolder& folder_;
  bool bare_;
  std::set<std::string_view> taken_;
};

std::vector<Source> find_sources(const HfFolder& folder, const ModelShape& shape) {
  Names names(folder);
  std::vector<Source> sources;
  for (HfWeight& weight : hf_weights(shape)) {
    const HfFolder::Entry& entry = names.take(weight.name);
    if (!is_weight_dtype(entry.tensor->dtype))
      fail(entry.file->path(),
           fmt::format("tensor {} is {}: needs F32, F16 or BF16", json_quote(entry.tensor->name),
                       dtype_name(entry.tensor->dtype)));
    if (entry.tensor->shape != weight.stored_shape())
      fail(entry.file->path(),
           fmt::format("tensor {} has the shape [{}]: config.json says [{}]",
                       json_quote(entry.tensor->name), fmt::join(entry.tensor->shape, ", "),
                       fmt::join(weight.stored_shape(), ", ")));
    sources.push_back({std::move(weight), entry});
  }
  // Some programs save a tied head as well.
  if (shape.tied_embeddings && folder.tensors().contains("lm_head.weight")) {
    const HfFolder::Entry& head = names.take("lm_head.weight");
    const HfFolder::Entry& table = sources.front().entry;
    if (head.tensor->dtype != table.tensor->dtype || head.tensor->shape != table.tensor->shape ||
        folder.read(head) != folder.read(table))
      fail(head.file->path(),
           "tensor \"lm_head.weight\" differs from the embedding, and config.json has "
           "tie_word_embeddings true: set it to false");
  }
  names.refuse_rest();
  return sources;
}

// Our weight's bytes out of a tensor's.
std::vector<std::byte> own_part(const Source& source, std::vector<std::byte> bytes) {
  const HfWeight& weight = source.weight;
  if (weight.transposed) {
    std::vector<std::byte> turned(bytes.size());
    const auto rows = static_cast<std::size_t>(source.entry.tensor->shape[0]);
    const auto columns = static_cast<std::size_t>(source.entry.tensor->shape[1]);
    transpose(bytes, rows, columns, turned);
    bytes = std::move(turned);
  }
  const auto row = static_cast<std::ptrdiff_t>(bytes.size()) / weight.num_outputs;
  return {bytes.begin() + row * weight.outputs.begin, bytes.begin() + row * weight.outputs.end};
}

// Copies what travels with the weights; returns the names. A file that the model does not have may
// be there from an import that was killed.
std::vector<std::string> copy_files_beside(FileSystem& files, const std::string& hf_folder,
                                           const std::string& out) {
  std::vector<std::string> copied(std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  copied.emplace_back(kGenerationConfigName);
  std::erase_if(copied, [&](const std::string& name) {
    if (is_there(hf_folder + "/" + name)) {
      copy_file(files, hf_folder + "/" + name, out, name);
      return false;
    }
    files.unlink(out + "/" + name);
    return true;
  });
  return copied;
}

Config config_for(const ModelConfig& model, Dtype dtype) {
  Config config;
  config.model = model;
  config.training.dtype = dtype == Dtype::bf16 ? NumberType::bfloat16 : NumberType::float32;
  config.training.sequence_length = std::min(model.positions, kUsualSequence);
  return config;
}

}  // namespace

Transferred import_hf(const std::string& hf_folder, const std::string& out,
                      std::optional<Dtype> dtype) {
  RealFileSystem files;
  return import_hf(files, hf_folder, out, dtype);
}

Transferred import_hf(FileSystem& files, const std::string& hf_folder, const std::string& out,
                      std::optional<Dtype> dtype) {
  Transferred done;
  const std::string description = hf_folder + "/config.json";
  const std::string description_text = InputFile(description).read_text(kMaxConfigBytes);
  done.model = read_hf_config(description_text, description);
  const std::string token_ids = read_hf_token_ids(description_text, description);
  const HfFolder folder(hf_folder);
  Config config;
  config.model = done.model;
  const std::vector<Source> sources = find_sources(folder, model_shape(config));
  const bool all_bf16 = std::all_of(sources.begin(), sources.end(), [](const Source& source) {
    return source.entry.tensor->dtype == Dtype::bf16;
  });
  done.dtype = dtype ? *dtype : all_bf16 ? Dtype::bf16 : Dtype::f32;

  std::vector<TensorPiece> pieces;
  for (const Source& source : sources) {
    pieces.push_back(whole_tensor({source.weight.ours.name, done.dtype, source.weight.ours.shape}));
    done.parameters += source.weight.ours.count();
  }
  done.tensors = static_cast<std::int64_t>(pieces.size());

  CheckpointFolder checkpoint(files, {.folder = out});
  std::vector<std::byte> bytes;
  checkpoint.write_shard(0, pieces, [&](std::size_t i) {
    const Source& source = sources[i];
    bytes = convert(own_part(source, folder.read(source.entry)), source.entry.tensor->dtype,
                    done.dtype);
    return std::span<const std::byte>(bytes);
  });
  done.files = copy_files_beside(files, hf_folder, out);
  write_file_atomically(files, out + "/" + kTokenIdsName, token_ids);
  CheckpointInfo info;
  info.schedule = "none";
  info.config = config_text(config_for(done.model, done.dtype));
  checkpoint.commit(info);
  done.folder = out + "/" + step_folder_name(0);
  return done;
}

}  // namespace sluice
