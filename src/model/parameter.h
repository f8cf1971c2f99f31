// A weight with its name and its gradient. Names are the model's own and global: the same whatever
// the schedule, the placement, the mesh or the number of ranks.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/comm/tensors/group.h"
#include "sluice/run/plan.h"

namespace sluice {

// The element types of a model's tensors, and their device. A type alone means the CPU.
struct TensorKind {
  at::ScalarType dtype = at::kFloat;           // of weights and activations
  at::ScalarType gradient_dtype = at::kFloat;  // of the weights' gradients
  at::Device device = at::kCPU;
  bool trained = true;  // false: weights will be loaded, are not drawn and have no gradients

  TensorKind() = default;
  TensorKind(at::ScalarType type) : dtype(type) {}
  TensorKind(at::ScalarType type, at::ScalarType gradient)
      : dtype(type), gradient_dtype(gradient) {}
  bool on_gpu() const { return device.is_cuda(); }
  at::TensorOptions values() const { return at::TensorOptions(device).dtype(dtype); }
  // A weight's gradient, zero. Where nothing is trained, one element stands for all.
  at::Tensor gradient(at::IntArrayRef sizes) const {
    const at::TensorOptions options = at::TensorOptions(device).dtype(gradient_dtype);
    return trained ? at::zeros(sizes, options) : at::zeros({}, options).expand(sizes);
  }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
};

// The kind of a run's tensors on a device.
TensorKind tensor_kind(const RunPlan& plan, at::Device device);

// Which part of a whole weight a rank holds: a range along one dimension, all of the others.
struct Shard {
  std::vector<std::int64_t> whole;  // shape
  int dim = 0;
  RowRange range;
  // Several tensor ranks may hold the same part. One of them counts it (in norms) and saves it.
  bool counted = true;
  // Tensor ranks [sum_first, sum_end) compute different gradients of the same part, which add up to
  // its gradient. An empty range: they are the same already.
  int sum_first = 0, sum_end = 0;

  std::vector<std::int64_t> shape() const;  // of what is held
  // The index of the first element held in the whole weight, if the parts of all ranks were stored
  // one after the other.
  std::int64_t first_element() const;
};
// The whole weight, on a single rank.
Shard whole_shard(std::vector<std::int64_t> shape);

struct Parameter {
  std::string name;
  at::Tensor value;     // may be a view of rows of a larger weight (q, k, v of one matmul)
  at::Tensor gradient;  // fp32 or narrow, same shape; may be a view, too
  bool decay = true;    // weight decay applies: matrices, not norms and biases
  Shard shard;
};

// A parameter as a rank keeps it between ops: all of it, or its own rows (sharding.h).
struct KeptParameter {
  const Parameter* parameter = nullptr;
  at::Tensor value, gradient;  // of the rows `own`
  RowRange own;
};

// Fills a parameter from (seed, its name): normally distributed with the given deviation. Our own
// generator draws the values, so that an element depends on nothing else but its place in the whole
// weight.
void initialise_normal(at::Tensor& value, const Shard& shard, std::uint64_t seed,
                       const std::string& name, double deviation);

// The same for a whole one.
void initialise_normal(at::Tensor& value, std::uint64_t seed, const std::string& name,
                       double deviation);

}  // namespace sluice
