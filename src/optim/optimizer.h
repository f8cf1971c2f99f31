// AdamW, NAdam, Muon and plain SGD over named parameters, and the learning-rate schedule. Each
// element is updated by itself in a fixed order of operations: its new value depends only on its
// own value, gradient and state, and not on the other rows that the same rank updates. Muon's
// matrices are the exception: they are updated as wholes (optim/muon.h).
//
// Updates are computed in fp32. bf16 values are widened first, and those that change are rounded
// once: to the nearest, or stochastically, that is, up or down at random with probabilities that
// keep the mean. An update much smaller than the gap between two bf16 numbers then moves a weight
// now and then, right on average; rounding to the nearest would lose it. The random bits depend on
// the seed, the step, the weight's name and the element's place in the whole weight, in which the
// parts of tensor ranks follow one another. So schedule and mesh do not change them, except where
// tensor ranks split columns, and ranks that hold the same rows draw the same bits.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/comm/tensors/group.h"
#include "sluice/config/config.h"
#include "sluice/optim/weight.h"

namespace sluice {

namespace cuda {
struct UpdateRates;
}

// NAdam's momentum of a step, and the product of those up to it.
class MomentumProducts {
 public:
  struct Step {
    double momentum = 0, next = 0;  // of the step, and of the one after it
    double product = 1, product_with_next = 1;
  };
  // From 1. What went before is worked out anew where it is not the step after the last one.
  Step of(std::int64_t step, double beta1, double decay);

 private:
  std::int64_t step_ = 0;
  double product_ = 1;  // of steps 1 to step_
};

class Optimizer {
 public:
  // Masters and states cover the own rows only. `seed` is that of stochastic rounding. `tensor`,
  // the tensor ranks, among which matrices are put together, outlives the optimizer; null: there is
  // one.
  Optimizer(const OptimizerConfig& config, std::uint64_t seed, const std::vector<Weight>& weights,
            TensorGroup* tensor = nullptr);

  // One update of the own rows with gradients times `gradient_scale`. `step` counts from 1. Tensor
  // ranks call it together.
  void step(std::int64_t step, double learning_rate, double gradient_scale);

  // Moves the values of `weights`, which must be among those it updates, ahead by one more update
  // along the corrected moments that `updates` updates left, as if no gradient came; without decay.
  // REQUIRES: AdamW or NAdam, whole moments.
  void look_ahead(std::span<const Weight> weights, std::int64_t updates, double learning_rate);

  // keep() copies the own rows of masters (or of weights that have none) and of states. restore()
  // goes back to the last copy.
  void keep();
  void restore();

  // What must be saved beside the weights.
  struct State {
    std::string name;    // of the weight and of the state: "head.weight/master"
    at::Tensor tensor;   // of `own` rows
    std::string weight;  // the parameter's name; its Shard says what the rank holds of the whole
    RowRange own;        // rows of what the rank holds, of which this is the state
  };
  std::vector<State> states() const;

 private:
  struct Slot {
    Weight weight;
    at::Tensor value;                        // own rows: the master or the weight itself
    at::Tensor gradient;                     // own rows
    at::Tensor first_moment, second_moment;  // AdamW, NAdam
    at::Tensor momentum;                     // Muon
    bool has_master = false;
    std::vector<at::Tensor> kept;  // as in tensors()

    std::vector<at::Tensor> tensors() const;  // that an update changes
  };

  // The seed of the random bits, from the first own row of the weight on.
  std::uint64_t seed_of(const Weight& weight, std::int64_t step) const;

  void update(const Slot& slot, const at::Tensor& gradient, const cuda::UpdateRates& rates,
              std::int64_t step) const;
  void update_matrices(std::int64_t step, double learning_rate, double gradient_scale, float keep);

  OptimizerConfig config_;
  std::uint64_t seed_;
  TensorGroup* tensor_;
  std::vector<Slot> slots_;
  MomentumProducts products_;
};

// The factor that clips a gradient of this norm to `max_norm`; 1 where it is small enough, or where
// `max_norm` is 0. The only place that decides whether to clip.
double clip_scale(double gradient_norm, double max_norm);

// Linear warm-up over `warmup_steps`, then a cosine down to `min_ratio` at `num_steps`. `step`
// from 1.
double learning_rate(double peak, std::int64_t step, std::int64_t warmup_steps,
                     std::int64_t num_steps, double min_ratio);

}  // namespace sluice
