#include <fmt/ranges.h>

#include <map>

#include "base/text.h"
#include "data/bpe.h"
#include "runtime/config/model.h"
#include "runtime/files/checkpoint_folder.h"
#include "runtime/weights/convert.h"
#include "runtime/weights/hf_config.h"
#include "runtime/weights/hf_import.h"
#include "runtime/weights/hf_tensors.h"
#include "runtime/weights/saved_model.h"

namespace sluice {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

void refuse_other_model(const std::string& out) {
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (const std::string path = out + "/" + name; is_there(path))
      throw user_error("--out is '{}': {} is there already; name another folder", out, path);
}

// The weights by the tensors that they become.
using Tensors = std::map<std::string, std::vector<const HfWeight*>>;

// All weights, each as the model has it, of one type.
Dtype check_weights(const Checkpoint& checkpoint, const std::vector<HfWeight>& weights) {
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
         fmt::format("has {} weights, and such a model {}: it has layers of its own", num_weights,
                     weights.size()));
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

// Where ours can read the file, and it names one.
std::optional<std::int32_t> end_of_text(const std::string& tokenizer) {
  try {
    const std::int32_t token = open_tokenizer(tokenizer)->end_of_document();
    return token < 0 ? std::nullopt : std::optional(token);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

Transferred export_hf(const std::string& checkpoint_path, const std::string& out) {
  const Checkpoint checkpoint(checkpoint_at(checkpoint_path));
  const Config config = config_of(checkpoint);
  if (config.model.shape == "bert")
    throw user_error("{} is of shape bert: gpt2 and llama can be exported", checkpoint.folder());
  refuse_other_model(out);
  const std::vector<HfWeight> weights = hf_weights(model_shape(config));
  Transferred done{.folder = out, .model = config.model};
  done.dtype = check_weights(checkpoint, weights);

  Tensors tensors;
  for (const HfWeight& weight : weights) {
    tensors[weight.name].push_back(&weight);
    done.parameters += weight.ours.count();
  }
  done.tensors = static_cast<std::int64_t>(tensors.size());
  std::vector<TensorSpec> specs;
  for (const auto& [name, parts] : tensors)
    specs.push_back({name, done.dtype, parts.front()->stored_shape()});

  RealFileSystem files;
  make_folders(files, out);
  SafetensorsWriter writer(files, out + "/model.safetensors", std::move(specs), {{"format", "pt"}});
  std::vector<std::byte> bytes;
  for (const TensorInfo& tensor : writer.tensors()) {
    bytes.resize(tensor.bytes);
    assemble(checkpoint, tensors.at(tensor.name), bytes);
    writer.write(bytes);
  }
  writer.commit();
  HfConfigOptions written{.dtype = done.dtype};
  if (const std::string tokenizer = tokenizer_of(checkpoint.folder()); !tokenizer.empty()) {
    copy_tokenizer(files, tokenizer, out);
    done.tokenizer = true;
    written.end_of_text = end_of_text(tokenizer);
  }
  write_file_atomically(files, out + "/config.json", write_hf_config(config.model, written));
  return done;
}

}  // namespace sluice
