#include "sluice/runtime/datasets.h"

#include <filesystem>

#include "sluice/base/error.h"
#include "sluice/config/resolve.h"

namespace sluice {
namespace {

std::shared_ptr<const TokenSource> open_source(const DataConfig& data) {
  if (data.path.empty())
    throw user_error("data.path is missing: name a text file, `data.path`=FILE");
  const DataFormat format = data.format;
  std::error_code ignored;
  if (format != DataFormat::megatron && !std::filesystem::exists(data.path, ignored) &&
      !std::filesystem::exists(indexed_prefix(data.path) + ".idx", ignored))
    throw user_error(
        "data.path is '{}': no such file or folder; name one with `data.path`=FILE, or write a "
        "sample text there with tools/corpus '{}'",
        data.path, data.path);
  const auto tokenizer = data.tokenizer.empty() ? nullptr : open_tokenizer(data.tokenizer);
  return open_token_source(data.path, format, tokenizer.get());
}

MaskOptions masks_of(const Config& config, const TokenSource& source) {
  MaskOptions masks;
  masks.seed = static_cast<std::uint64_t>(config.debug.seed);
  masks.mask_token = config.model.vocab_size - 1;
  masks.never_masked = source.end_of_document();
  if (masks.never_masked >= masks.mask_token)
    throw user_error(
        "model.vocab_size is {}: bytes with masks need {} tokens (256, the end of a document, the "
        "mask); use {}",
        config.model.vocab_size, masks.never_masked + 2, masks.never_masked + 2);
  // The end of a document is the first token that is not ordinary.
  masks.num_ordinary = masks.never_masked >= 0 ? masks.never_masked : masks.mask_token;
  return masks;
}

}  // namespace

std::vector<std::string> overlong_notes(const Datasets& data) {
  std::vector<std::string> notes;
  if (const std::string& note = data.training.overlong_note(); !note.empty())
    notes.push_back("training data: " + note);
  if (data.held_out && !data.held_out->overlong_note().empty())
    notes.push_back("validation data: " + data.held_out->overlong_note());
  return notes;
}

Datasets open_datasets(const Config& config) {
  const std::shared_ptr<const TokenSource> source = open_source(config.data);
  DatasetOptions options{.sequence_length = config.training.sequence_length,
                         .packing = config.data.packing,
                         .overlong = config.data.overlong,
                         .validation_fraction = config.data.validation_fraction,
                         .vocab_size = config.model.vocab_size,
                         .seed = static_cast<std::uint64_t>(config.debug.seed)};
  if (config.model.shape == ModelFamily::bert) options.masks = masks_of(config, *source);
  Datasets datasets{.training = Dataset(source, options), .held_out = std::nullopt};
  if (validates(config)) {
    options.split = Split::validation;
    options.shuffle = false;
    datasets.held_out.emplace(source, options);
  }
  return datasets;
}

}  // namespace sluice
