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

}  // namespace sluice
