#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/config/model.h"
#include "sluice/data/bpe.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "sluice/runtime/weights/convert.h"
#include "sluice/runtime/weights/hf_config.h"
#include "sluice/runtime/weights/hf_import.h"
#include "sluice/runtime/weights/hf_tensors.h"
#include "sluice/runtime/weights/saved_model.h"

namespace sluice {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

constexpr const char* kConfigName = "config.json";
constexpr const char* kWeightsName = "model.safetensors";

std::vector<std::string> written_names() {
  std::vector<std::string> names(std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  names.insert(names.end(), {kGenerationConfigName, kWeightsName});
  return names;
}

// Temporaries of the files above, which an export that was killed left. An export begins with the
// temporary of config.json and ends with renaming it: a folder with one and without a config.json
// is the work of a killed export.
std::vector<std::string> leftovers_in(const std::string& out) {
  std::vector<std::string> names = written_names(), found;
  names.emplace_back(kConfigName);
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(out, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (is_temporary_name(name) &&
        std::any_of(names.begin(), names.end(),
                    [&](const std::string& whole) { return name.starts_with(whole + "."); }))
      found.push_back(name);
  }
  return found;
}

void refuse_other_model(const std::string& out, bool killed) {
  std::vector<std::string> others = {kConfigName, "model.safetensors.index.json"};
  if (!killed)
    for (const std::string& name : written_names())
      others.push_back(name);
  for (const std::string& name : others)
    if (const std::string path = out + "/" + name; is_there(path))
      throw user_error("`out` is '{}': {} exists, and is not overwritten; name another folder", out,
                       path);
}

// The weights by the tensors that they become.
using Tensors = std::map<std::string, std::vector<const HfWeight*>>;

// All weights, each as the model has it, of one type.
Dtype check_weights(const Checkpoint& checkpoint, ModelFamily shape,
                    const std::vector<HfWeight>& weights) {
  std::optional<Dtype> dtype;
  std::size_t num_weights = 0;
  for (const TensorSpec& tensor : checkpoint.tensors())
    num_weights += tensor.name.find('/') == std::string::npos;
  for (const HfWeight& weight : weights) {
    const TensorSpec* tensor = checkpoint.find(weight.ours.name);
    if (!tensor || tensor->shape != weight.ours.shape)
      fail(checkpoint.folder(),
           fmt::format("{} '{}': needs [{}]; its configuration is of another model",
                       tensor ? fmt::format("has [{}] as", fmt::join(tensor->shape, ", "))
                              : std::string("has no tensor"),
                       weight.ours.name, fmt::join(weight.ours.shape, ", ")));
    if (dtype && tensor->dtype != *dtype)
      fail(checkpoint.folder(), fmt::format("'{}' is {}, and others are {}", tensor->name,
                                            dtype_name(tensor->dtype), dtype_name(*dtype)));
    dtype = tensor->dtype;
  }
  if (num_weights != weights.size())
    fail(checkpoint.folder(),
         fmt::format("has {} weights, and a {} has {}: transformers cannot load own layers",
                     num_weights, shape, weights.size()));
  return *dtype;
}

void assemble(const Checkpoint& checkpoint, const std::vector<const HfWeight*>& parts,
              std::vector<std::byte>& bytes) {
  const auto outputs = static_cast<std::size_t>(parts.front()->num_outputs);
  std::vector<std::byte> rows(bytes.size());
  for (const HfWeight* part : parts) {
    const TensorSpec& tensor = *checkpoint.find(part->ours.name);
    const std::size_t row = rows.size() / outputs;
    checkpoint.read_box(
        tensor, whole_box(tensor),
        std::span(rows).subspan(row * static_cast<std::size_t>(part->outputs.begin),
                                row * static_cast<std::size_t>(part->outputs.size())));
  }
  if (parts.front()->transposed)
    transpose(rows, outputs, static_cast<std::size_t>(parts.front()->ours.shape[1]), bytes);
  else
    bytes = std::move(rows);
}

std::string token_ids_in(const std::string& path) {
  constexpr std::uint64_t kMaxBytes = 1 << 20;
  return read_hf_token_ids(InputFile(path).read_text(kMaxBytes), path);
}

// Of a tokenizer that Sluice can read and that names one.
std::optional<std::int32_t> end_of_text(const std::string& tokenizer) {
  try {
    const std::int32_t token = open_tokenizer(tokenizer)->end_of_document();
    return token < 0 ? std::nullopt : std::optional(token);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

Transferred write_weights(FileSystem& files, const Checkpoint& checkpoint,
                          const std::vector<HfWeight>& weights, Dtype dtype,
                          const std::string& out) {
  Transferred done{.folder = out, .model = {}, .dtype = dtype};
  Tensors tensors;
  for (const HfWeight& weight : weights) {
    tensors[weight.name].push_back(&weight);
    done.parameters += weight.ours.count();
  }
  done.tensors = static_cast<std::int64_t>(tensors.size());
  std::vector<TensorSpec> specs;
  for (const auto& [name, parts] : tensors)
    specs.push_back({name, dtype, parts.front()->stored_shape()});
  SafetensorsWriter writer(files, out + "/" + kWeightsName, std::move(specs), {{"format", "pt"}});
  std::vector<std::byte> bytes;
  for (const TensorInfo& tensor : writer.tensors()) {
    bytes.resize(tensor.bytes);
    assemble(checkpoint, tensors.at(tensor.name), bytes);
    writer.write(bytes);
  }
  writer.commit();
  return done;
}

// Copies what travels with the weights; returns the names.
std::vector<std::string> copy_files_beside(FileSystem& files, const std::string& checkpoint,
                                           const std::string& out) {
  std::vector<std::string> copied;
  for (const std::string& name : written_names()) {
    const std::string path = name == kWeightsName ? "" : file_beside(checkpoint, name.c_str());
    if (path.empty()) continue;
    copy_file(files, path, out, name);
    copied.push_back(name);
  }
  return copied;
}

}  // namespace

Transferred export_hf(const std::string& checkpoint_path, const std::string& out) {
  RealFileSystem files;
  return export_hf(files, checkpoint_path, out);
}

Transferred export_hf(FileSystem& files, const std::string& checkpoint_path,
                      const std::string& out) {
  const Checkpoint checkpoint(checkpoint_at(checkpoint_path));
  const Config config = config_of(checkpoint);
  if (config.model.shape == ModelFamily::bert)
    throw user_error("{} has model.shape bert: only gpt2 and llama can be exported",
                     checkpoint.folder());
  const std::vector<std::string> leftovers = leftovers_in(out);
  const bool killed = std::any_of(leftovers.begin(), leftovers.end(), [](const std::string& name) {
    return name.starts_with(std::string(kConfigName) + ".");
  });
  refuse_other_model(out, killed);
  const std::vector<HfWeight> weights = hf_weights(model_shape(config));
  const Dtype dtype = check_weights(checkpoint, config.model.shape, weights);

  make_folders(files, out);
  AtomicFile description(files, out + "/" + kConfigName);  // see leftovers_in
  const auto remove = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names)
      files.unlink(out + "/" + name);
  };
  if (killed) {
    remove(leftovers);
    remove(written_names());
  }
  try {
    Transferred done = write_weights(files, checkpoint, weights, dtype, out);
    done.model = config.model;
    HfConfigOptions written{.dtype = dtype};
    done.files = copy_files_beside(files, checkpoint.folder(), out);
    if (const std::string ids = file_beside(checkpoint.folder(), kTokenIdsName); !ids.empty())
      written.token_ids = token_ids_in(ids);
    else if (const std::string own = tokenizer_of(checkpoint.folder()); !own.empty())
      written.end_of_text = end_of_text(own);
    description.write(write_hf_config(config.model, written));
    description.commit();
    return done;
  } catch (...) {
    if (!is_there(out + "/" + kConfigName)) remove(written_names());
    throw;
  }
}

}  // namespace sluice
