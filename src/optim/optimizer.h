// AdamW and plain SGD over named parameters, and the learning-rate schedule. Each element is
// updated by itself in a fixed order of operations: its new value depends only on its own value,
// gradient and state, and not on the other rows that the same rank updates.
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
#include <string>
#include <vector>

#include "sluice/comm/tensors/group.h"
#include "sluice/config/config.h"

namespace sluice {

// A weight as this rank holds it. The tensors share the model's memory and are contiguous.
struct Weight {
  std::string name;
  at::Tensor value;
  at::Tensor gradient;
  bool decay = true;    // weight decay applies
  bool counted = true;  // in the gradient norm: exactly one of the ranks that hold it counts it
  RowRange own;         // the rows that this rank updates; other data ranks update the others
  std::string drawn_as = {};  // the name that stochastic rounding uses; empty: `name`
  std::int64_t place = 0;     // of its first element in the whole weight
  // Of a sharded weight, whose tensors hold the own rows only: all rows there are. 0: they hold
  // all.
  std::int64_t sharded_rows = 0;

  std::int64_t rows() const { return sharded_rows > 0 ? sharded_rows : value.size(0); }
  std::int64_t width() const {  // elements of a row
    return c10::multiply_integers(value.sizes().slice(1));
  }
  // Some rows of one of its tensors. REQUIRES: own ones, of a sharded weight.
  at::Tensor rows_of(const at::Tensor& tensor, const RowRange& rows) const {
    const std::int64_t first = sharded_rows > 0 ? own.begin : 0;
    return tensor.slice(0, rows.begin - first, rows.end - first);
  }
  at::Tensor own_value() const { return rows_of(value, own); }
  at::Tensor own_gradient() const { return rows_of(gradient, own); }
};

class Optimizer {
 public:
  // Masters and states cover the own rows only. `seed` is that of stochastic rounding.
  Optimizer(const OptimizerConfig& config, std::uint64_t seed, const std::vector<Weight>& weights);

  // One update of the own rows with gradients times `gradient_scale`. `step` counts from 1.
  void step(std::int64_t step, double learning_rate, double gradient_scale);

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
    at::Tensor first_moment, second_moment;  // AdamW
    bool has_master = false;
    std::vector<at::Tensor> kept;  // as in tensors()

    std::vector<at::Tensor> tensors() const;  // that an update changes
  };

  // The seed of the random bits, from the first own row of the weight on.
  std::uint64_t seed_of(const Weight& weight, std::int64_t step) const;

  OptimizerConfig config_;
  std::uint64_t seed_;
  std::vector<Slot> slots_;
};

// The factor that clips a gradient of this norm to `max_norm`; 1 where it is small enough, or where
// `max_norm` is 0. The only place that decides whether to clip.
double clip_scale(double gradient_norm, double max_norm);

// Linear warm-up over `warmup_steps`, then a cosine down to `min_ratio` at `num_steps`. `step`
// from 1.
double learning_rate(double peak, std::int64_t step, std::int64_t warmup_steps,
                     std::int64_t num_steps, double min_ratio);

}  // namespace sluice
