// What has been seen of one (stage, microbatch, slice), as a set of op kinds: tables of validate().
#pragma once

#include <cstdint>

#include "sluice/schedule/op.h"

namespace sluice {

using Seen = std::uint16_t;
constexpr Seen bit(OpKind kind) { return static_cast<Seen>(1u << static_cast<unsigned>(kind)); }
// What meets an input: F, or either op that gives the input gradient.
constexpr Seen wanted(const Op& input) {
  return input.kind == OpKind::F ? bit(OpKind::F) : bit(OpKind::I) | bit(OpKind::B);
}

}  // namespace sluice
