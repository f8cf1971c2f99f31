// Files with one JSON object per line and step, which a resumed run continues: what it writes again
// is cut first.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/runtime/files/atomic_file.h"

namespace sluice {

// What becomes of a line. One that cannot be read is kept: it may be the user's.
enum class LineFate { keep, drop, foreign };

// The step that a line is of; nothing where it does not say one.
std::optional<std::int64_t> step_of_line(std::string_view line);

// Asks `fate` of every whole line of the file at `path`, newline included, and cuts those to drop,
// as well as a last line that a killed run left unfinished. False, and nothing is changed, where
// one is foreign. `file` is that file.
bool continue_lines(AppendFile& file, const std::string& path,
                    const std::function<LineFate(std::string_view line)>& fate);

}  // namespace sluice
