// Floating-point operations (FLOPs) of a model, counted once for all: training's tflops and MFU,
// the planner and the benchmarks start from the same numbers. A multiplication and an addition
// count two. Only matmuls count; norms, activations and lookups do not.
#pragma once

#include <cstdint>
#include <string_view>

#include "sluice/cost/model_shape.h"
#include "sluice/cost/number_type.h"

namespace sluice {

// One layer's forward pass, per token.
struct LayerFlops {
  double qkv = 0, out = 0, up = 0, down = 0;
  double attention = 0;  // scores, and the weighted sum of values

  double matmuls() const { return qkv + out + up + down; }  // with weights
};
// A token attends to its document of `length` tokens: to all of it in an encoder, to half of it, on
// average, in a decoder.
LayerFlops layer_flops(const ModelShape& shape, double length);

// The head's forward pass, per token.
struct HeadFlops {
  double dense = 0;  // of an encoder
  double logits = 0;
};
HeadFlops head_flops(const ModelShape& shape);

// A training step, as MFU is defined: the forward pass once, the backward pass twice as much, and
// nothing for recomputation. `squared_lengths` is the sum of squares of the lengths of all
// documents: sequences * length^2 where a sequence is one document.
double step_flops(const ModelShape& shape, double tokens, double squared_lengths);

// The dense matmul peak of a GPU, in TFLOP/s, by the name that CUDA gives it: "NVIDIA H200".
// float32 is without TF32. 0 for a GPU that is not in the table.
double known_peak_tflops(std::string_view gpu, NumberType type);

}  // namespace sluice
