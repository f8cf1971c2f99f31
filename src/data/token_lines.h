// Tokens as plain text: one number per line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/token_source.h"

namespace sluice {

// All of them as one document; lines of blanks are passed over. Throws UserError (3) with line and
// value for what is no token of a vocabulary of this size, and for a file without any.
std::unique_ptr<TokenSource> read_token_lines(const std::string& path, std::int64_t vocab_size);

}  // namespace sluice
