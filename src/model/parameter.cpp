#include "sluice/model/parameter.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "sluice/base/counter_random.h"
#include "sluice/base/text.h"
#include "sluice/comm/tensors/scalar_type.h"
#include "sluice/cuda/functions.h"

namespace sluice {
namespace {

double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace

TensorKind tensor_kind(const RunPlan& plan, at::Device device) {
  TensorKind kind(scalar_type(plan.config.training.dtype),
                  scalar_type(plan.config.training.gradient_dtype));
  kind.device = device;
  return kind;
}

std::vector<std::int64_t> Shard::shape() const {
  std::vector<std::int64_t> shape = whole;
  shape[static_cast<std::size_t>(dim)] = range.count();
  return shape;
}

std::int64_t Shard::first_element() const {
  std::int64_t slab = 1;  // elements of each step along the divided dimension
  for (std::size_t n = 0; n < whole.size(); ++n)
    if (n != static_cast<std::size_t>(dim)) slab *= whole[n];
  return range.begin * slab;
}

Shard whole_shard(std::vector<std::int64_t> shape) {
  const RowRange all{0, shape[0]};
  return {.whole = std::move(shape), .range = all};
}

void initialise_normal(at::Tensor& value, const Shard& shard, std::uint64_t seed,
                       const std::string& name, double deviation) {
  const std::uint64_t base = mix(seed ^ mix(hash_of(name)));
  const std::int64_t width = shard.whole.back();
  const RowRange columns =
      shard.dim == 1 ? shard.range : RowRange{0, shard.whole.size() == 1 ? 1 : width};
  const std::int64_t first_row = shard.dim == 0 ? shard.range.begin : 0;
  const std::int64_t stride = shard.whole.size() == 1 ? 1 : width;
  if (value.is_cuda())
    return cuda::draw_normal(value, {columns.count(), first_row, columns.begin, stride}, base,
                             deviation);
  const at::Tensor drawn = at::empty(value.sizes(), at::kFloat);
  float* out = drawn.mutable_data_ptr<float>();
  at::parallel_for(0, drawn.numel(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t row = first_row + n / columns.count();
      const std::int64_t column = columns.begin + n % columns.count();
      const auto counter = static_cast<std::uint64_t>(row * stride + column);
      const double radius = std::sqrt(-2 * std::log(uniform(mix(base + 2 * counter))));
      const double angle = 2 * std::numbers::pi * uniform(mix(base + 2 * counter + 1));
      out[n] = static_cast<float>(deviation * radius * std::cos(angle));
    }
  });
  value.copy_(drawn);
}

void initialise_normal(at::Tensor& value, std::uint64_t seed, const std::string& name,
                       double deviation) {
  initialise_normal(value, whole_shard(value.sizes().vec()), seed, name, deviation);
}

}  // namespace sluice
