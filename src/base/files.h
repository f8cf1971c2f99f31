// Reading whole files of text.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "sluice/base/error.h"

namespace sluice {

// The whole of a text file; "-" is standard input. Throws UserError, also for a file of more than
// `most_bytes` and for one that is not text; temporary for storage that may answer later.
std::string read_text(const std::string& path, std::size_t most_bytes);

// What `parse` makes of a file's text; a UserError of it begins with the file's name.
template <typename Parse>
auto parse_file(const std::string& path, std::size_t most_bytes, Parse parse) {
  const std::string text = read_text(path, most_bytes);
  try {
    return parse(text);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", path, error.what()), error.code());
  }
}

}  // namespace sluice
