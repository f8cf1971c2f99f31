#include "sluice/optim/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "sluice/run/optimizer_states.h"

namespace sluice {
namespace {

constexpr double kEpsilon = 1e-7;  // of the norm that a matrix is divided by
// Of an odd polynomial that takes singular values towards 1.
constexpr double kLinear = 3.4445, kCubic = -4.7750, kQuintic = 2.0315;

// a x + b y z, of matrices or of batches of them.
at::Tensor sum_with_product(const at::Tensor& x, double a, const at::Tensor& y, const at::Tensor& z,
                            double b) {
  return x.dim() == 2 ? at::addmm(x, y, z, a, b) : at::baddbmm(x, y, z, a, b);
}

// How many ranks hold different parts: more ranks than key heads share these.
std::int64_t num_parts(const at::Tensor& part, const Weight::Matrix& whole) {
  return whole.divided == 0 ? whole.rows / part.size(0) : whole.columns / part.size(1);
}

at::Tensor put_together(const at::Tensor& part, const Weight::Matrix& whole, TensorGroup* tensor) {
  if (!tensor || tensor->size() == 1) return part;
  const std::int64_t ranks = tensor->size();
  const at::Tensor all = tensor
                             ->all_gather(part.reshape({-1}), part.numel() * ranks,
                                          TrafficClass::optimizer, "momentum")
                             .view({ranks, part.size(0), part.size(1)});
  if (whole.divided == 1) return all.permute({1, 0, 2}).reshape({whole.rows, whole.columns});
  return all.slice(0, 0, ranks, ranks / num_parts(part, whole))
      .reshape({whole.rows, whole.columns});
}

at::Tensor own_part(const at::Tensor& matrix, const MuonMatrix& held, TensorGroup* tensor) {
  if (!tensor || tensor->size() == 1) return matrix;
  const std::int64_t part = tensor->rank() * num_parts(held.momentum, held.whole) / tensor->size();
  const std::int64_t along = held.momentum.size(held.whole.divided);
  return matrix.narrow(held.whole.divided, part * along, along).contiguous();
}

// The momentum after a gradient, and what Nesterov's rule takes of both.
at::Tensor accelerated(const MuonMatrix& matrix, double momentum, double scale) {
  const at::Tensor gradient = matrix.gradient.to(at::kFloat) * scale;
  const at::Tensor sum = matrix.momentum.to(at::kFloat) * momentum + gradient;
  at::Tensor kept = matrix.momentum;
  kept.copy_(sum);
  return gradient + sum * momentum;
}

}  // namespace

at::Tensor orthogonalized(const at::Tensor& x, int steps, at::ScalarType type) {
  const bool tall = x.size(-2) > x.size(-1);
  at::Tensor y = (x / x.square().sum({-2, -1}, true).sqrt().clamp_min(kEpsilon)).to(type);
  if (tall) y = y.transpose(-2, -1).contiguous();
  for (int step = 0; step < steps; ++step) {
    const at::Tensor square = at::matmul(y, y.transpose(-2, -1));
    const at::Tensor more = sum_with_product(square, kCubic, square, square, kQuintic);
    y = sum_with_product(y, kLinear, more, y, 1);
  }
  if (tall) y = y.transpose(-2, -1);
  return y.to(at::kFloat).contiguous();
}

double muon_scale(MuonScale scale, const Weight::Matrix& matrix) {
  const auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
  return scale == MuonScale::adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                   : std::sqrt(std::max(1.0, rows / columns));
}

void for_each_direction(const OptimizerConfig& config, std::span<const MuonMatrix> matrices,
                        double gradient_scale, TensorGroup* tensor,
                        const std::function<void(std::size_t, const at::Tensor&)>& use) {
  const auto type = config.muon_dtype == IterationType::bfloat16 ? at::kBFloat16 : at::kFloat;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> by_shape;
  for (std::size_t n = 0; n < matrices.size(); ++n)
    by_shape[{matrices[n].whole.rows, matrices[n].whole.columns}].push_back(n);
  for (const auto& [shape, members] : by_shape) {
    const bool together = matrices[members[0]].momentum.is_cuda();
    const auto batch =
        together ? static_cast<std::size_t>(muon_batch(shape.first, shape.second)) : 1;
    for (std::size_t first = 0; first < members.size(); first += batch) {
      const std::size_t end = std::min(first + batch, members.size());
      std::vector<at::Tensor> wholes;
      for (std::size_t n = first; n < end; ++n) {
        const MuonMatrix& matrix = matrices[members[n]];
        wholes.push_back(put_together(accelerated(matrix, config.momentum, gradient_scale),
                                      matrix.whole, tensor));
      }
      // One by one without a batch, so that its bits do not depend on its neighbours.
      const at::Tensor all = together ? at::stack(wholes) : wholes[0].unsqueeze(0);
      wholes.clear();
      const at::Tensor iterated =
          together ? orthogonalized(all, config.muon_steps, type)
                   : orthogonalized(all[0], config.muon_steps, type).unsqueeze(0);
      for (std::size_t n = first; n < end; ++n)
        use(members[n],
            own_part(iterated[static_cast<std::int64_t>(n - first)], matrices[members[n]], tensor));
    }
  }
}

}  // namespace sluice
