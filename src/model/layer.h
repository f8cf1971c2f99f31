// A pipeline layer: what stands between embedding and head. A stage runs its layers one slice of
// one microbatch at a time; each layer keeps what it needs from F to I and from I to W in a state
// that it makes itself. The stage only holds and counts it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/model/parameter.h"
#include "sluice/model/slice.h"
#include "sluice/model/tensor_parallel.h"

namespace sluice {

// What a layer keeps of one microbatch.
class LayerState {
 public:
  virtual ~LayerState() = default;

  // Bytes held for one slice, plus those that the microbatch holds as a whole: element size times
  // number of elements, each storage once.
  virtual std::int64_t bytes(std::size_t slice) const = 0;
};

// Only its rank's thread uses a layer. `state` is always one that its own open() made.
class Layer {
 public:
  virtual ~Layer() = default;

  // An empty state for a microbatch of `num_slices` slices.
  virtual std::unique_ptr<LayerState> open(std::size_t num_slices) const = 0;

  // x (T, dim) -> y (T, dim), or with sequence-parallel norms this rank's tokens of both. REQUIRES
  // earlier slices' F.
  virtual at::Tensor forward(const at::Tensor& x, LayerState& state,
                             const SliceContext& context) = 0;
  // dy -> dx. Leaves in the state what weight_grad needs. REQUIRES later slices' I.
  virtual at::Tensor input_grad(const at::Tensor& dy, LayerState& state,
                                const SliceContext& context) = 0;
  // Adds to the gradients and empties the slice's state.
  virtual void weight_grad(LayerState& state, const SliceContext& context) = 0;
  // input_grad and weight_grad in one call, with the same result. A layer that has to wait for
  // other ranks computes its weight gradients meanwhile.
  virtual at::Tensor backward(const at::Tensor& dy, LayerState& state,
                              const SliceContext& context) {
    at::Tensor dx = input_grad(dy, state, context);
    weight_grad(state, context);
    return dx;
  }
  // As forward, for evaluation: keeps only what later slices need.
  virtual at::Tensor evaluate(const at::Tensor& x, LayerState& state,
                              const SliceContext& context) = 0;

  virtual std::vector<Parameter>& parameters() = 0;
  // Whether the memory of its weights may be freed between ops, and that of its gradients outside
  // of weight_grad and backward.
  virtual bool shardable() const { return true; }
};

struct LayerOptions {
  ModelShape shape;
  std::int64_t layer = 0;  // its number in the model
  std::uint64_t seed = 0;
  TensorKind kind = {};
  TensorParallel tensor = {};
};

// Makes the layers of a stage; called on the rank's own thread.
using LayerFactory = std::function<std::unique_ptr<Layer>(const LayerOptions&)>;
// The usual one: a transformer block of the model's shape.
std::unique_ptr<Layer> make_block(const LayerOptions& options);

}  // namespace sluice
