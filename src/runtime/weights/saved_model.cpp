#include "runtime/weights/saved_model.h"

namespace sluice {

Config config_of(const Checkpoint& checkpoint) {
  try {
    return load_config_text(checkpoint.manifest().info.config,
                            fmt::format("the configuration of {}", checkpoint.folder()), {})
        .values;
  } catch (const UserError& error) {
    throw UserError(error.what(), ExitCode::bad_data);
  }
}

std::string tokenizer_of(const Checkpoint& checkpoint) {
  for (const std::string& folder : {checkpoint.folder(), parent_folder(checkpoint.folder())})
    if (const std::string path = folder + "/" + kTokenizerName; is_there(path)) return path;
  return "";
}

void copy_tokenizer(FileSystem& files, const std::string& path, const std::string& folder) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  write_file_atomically(files, folder + "/" + kTokenizerName, InputFile(path).read_text(kMaxBytes));
}

}  // namespace sluice
