#include "runtime/weights/saved_model.h"

#include <filesystem>
#include <vector>

#include "runtime/files/checkpoint_folder.h"

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

std::string tokenizer_of(const std::string& folder) {
  const std::filesystem::path own = std::filesystem::path(folder + "/").parent_path();
  std::vector<std::string> places = {own.string()};
  if (parse_step_folder(own.filename().string())) places.push_back(parent_folder(own.string()));
  for (const std::string& place : places)
    if (const std::string path = place + "/" + kTokenizerName; is_there(path)) return path;
  return "";
}

void copy_tokenizer(FileSystem& files, const std::string& path, const std::string& folder) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  write_file_atomically(files, folder + "/" + kTokenizerName, InputFile(path).read_text(kMaxBytes));
}

}  // namespace sluice
