// Tokens as plain text: one number per line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sluice/data/token_source.h"

namespace sluice {

// All of them are one document; blank lines are skipped. Throws UserError (3) with line and value
// for what is not a token of a vocabulary of this size, and for a file without tokens.
std::unique_ptr<TokenSource> read_token_lines(const std::string& path, std::int64_t vocab_size);

}  // namespace sluice
