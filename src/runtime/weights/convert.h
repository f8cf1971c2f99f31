// Elements of weights as bytes: from one floating-point type to another, and transposed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sluice/runtime/files/safetensors.h"

namespace sluice {

// F32, F16 or BF16, which is what weights come in.
bool is_weight_dtype(Dtype dtype);

// The same values in F32 or BF16 (to the nearest, ties to even). From F16 and BF16 to F32 no value
// changes. REQUIRES: is_weight_dtype(from).
std::vector<std::byte> convert(std::vector<std::byte> values, Dtype from, Dtype to);

// (rows, columns) -> (columns, rows). Equal sizes; they do not overlap.
void transpose(std::span<const std::byte> from, std::size_t rows, std::size_t columns,
               std::span<std::byte> to);

}  // namespace sluice
