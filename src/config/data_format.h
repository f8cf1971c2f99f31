// The forms that training data comes in.
#pragma once

#include <array>
#include <string_view>

namespace sluice {

enum class DataFormat {
  automatic,  // megatron where PATH.idx exists or PATH ends in .idx or .bin, else by file name
  text,
  jsonl,
  bytes,
  megatron
};
constexpr auto names_of(DataFormat) {
  return std::array<std::string_view, 5>{"auto", "text", "jsonl", "bytes", "megatron"};
}

// What a sample is (data/dataset.h).
enum class Packing { stream, documents, sequences };
constexpr auto names_of(Packing) {
  return std::array<std::string_view, 3>{"stream", "documents", "sequences"};
}

// What becomes of a document that is longer than a sequence may be, where each is one.
enum class Overlong { error, drop, truncate };
constexpr auto names_of(Overlong) {
  return std::array<std::string_view, 3>{"error", "drop", "truncate"};
}

}  // namespace sluice
