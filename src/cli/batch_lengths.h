// The lengths of a batch's sequences: from a file, or drawn from a named distribution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/base/names.h"

namespace sluice::cli {

enum class Overlong { error, drop, truncate };
constexpr auto names_of(Overlong) {
  return std::array<std::string_view, 3>{"error", "drop", "truncate"};
}

// What the flags ask for.
struct LengthsRequest {
  std::string from;        // a distribution, unless there is such a file
  std::int64_t count = 0;  // 0: all that the file has, or 512 draws
  std::uint64_t seed = 0;
  std::int64_t longest = 196'608;
};

struct GivenLengths {
  std::string source = {};  // the file, or the distribution
  bool from_file = false;
  std::vector<std::int64_t> lengths = {};  // all positive, at least one
  std::vector<std::string> places = {};    // in the file: "line 3"
  std::int64_t dropped = 0;                // draws that were longer than the longest
  std::int64_t empty = 0;                  // documents without a token, left out
};

inline constexpr std::int64_t kMostSequences = 65'536;
inline constexpr std::int64_t kMostTokens = 1'000'000'000;  // of a sequence

// Reads or draws them. A file has a positive number per line, or is Megatron's .idx, of which the
// documents count. Throws UserError: 2 for an unknown name, 3 naming file and line.
GivenLengths given_lengths(const LengthsRequest& request);

// How long a sequence may be.
struct LengthLimits {
  std::int64_t longest = 196'608;
  std::int64_t pad = 128;
  int largest_degree = 1;
  std::int64_t capacity_tokens = 0;  // of each of its devices
  Overlong overlong = Overlong::error;
};

struct FittedLengths {
  std::vector<std::int64_t> padded;
  std::int64_t tokens = 0;  // without the padding
  std::int64_t dropped = 0, truncated = 0;
};

// Pads each, and does with those that are too long what the limits say. Throws UserError for one
// that is too long (3 of a file, else 2), and where none is left.
FittedLengths fitted_lengths(const GivenLengths& given, const LengthLimits& limits);

}  // namespace sluice::cli
