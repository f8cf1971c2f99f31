// Muon: the update of a matrix is its momentum with all singular values near 1. A few steps of a
// Newton-Schulz iteration make it so, which takes matmuls of the whole matrix. Tensor ranks that
// hold parts of it put the momentum together; each iterates all of it and keeps its own part.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <span>

#include "sluice/config/config.h"
#include "sluice/optim/weight.h"

namespace sluice {

// x (..., m, n), fp32, scaled and iterated `steps` times in numbers of `type`: fp32 again. Zeros
// stay zeros.
at::Tensor orthogonalized(const at::Tensor& x, int steps, at::ScalarType type);

// How long updates are: of AdamW's length, or of the spectral norm that the shape wants.
double muon_scale(MuonScale scale, const Weight::Matrix& matrix);

struct MuonMatrix {
  at::Tensor momentum, gradient;  // all that this rank holds of it
  Weight::Matrix whole;
};
// Adds each gradient, times `gradient_scale`, to the momentum; then gives the direction of each
// update, of the rank's part, fp32 and contiguous, in any order. On a GPU matrices of one shape are
// iterated together. Tensor ranks call it together with the same matrices.
void for_each_direction(const OptimizerConfig& config, std::span<const MuonMatrix> matrices,
                        double gradient_scale, TensorGroup* tensor,
                        const std::function<void(std::size_t, const at::Tensor&)>& use);

}  // namespace sluice
