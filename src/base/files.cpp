#include "sluice/base/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "sluice/base/storage_error.h"

namespace sluice {
namespace {

UserError cannot_read(const std::string& path) {
  const int error = errno;
  return UserError(fmt::format("cannot read '{}': {}", path, std::strerror(error)),
                   is_transient(error) ? ExitCode::temporary : ExitCode::usage);
}

}  // namespace

std::string read_text(const std::string& path, std::size_t most_bytes) {
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  const bool standard_input = path == "-";
  const File file(standard_input ? stdin : std::fopen(path.c_str(), "rb"),
                  standard_input ? [](std::FILE*) { return 0; } : std::fclose);
  if (!file) throw cannot_read(path);
  const auto check_size = [&](std::size_t bytes) {
    if (bytes > most_bytes)
      throw user_error("'{}' is too large: at most {} MiB are read from such a file", path,
                       most_bytes >> 20);
  };
  std::error_code ignored;
  if (!standard_input && std::filesystem::is_regular_file(path, ignored))
    if (const auto bytes = std::filesystem::file_size(path, ignored); !ignored) check_size(bytes);
  // A pipe or a device says nothing of its size: it is counted as it comes.
  std::string text;
  char block[1 << 16];
  for (;;) {
    const std::size_t got = std::fread(block, 1, sizeof block, file.get());
    if (std::memchr(block, 0, got))
      throw user_error("'{}' is not a text file: it holds a NUL byte", path);
    text.append(block, got);
    check_size(text.size());
    if (got < sizeof block) break;
  }
  if (std::ferror(file.get())) throw cannot_read(path);
  return text;
}

}  // namespace sluice
