// AdamW and plain SGD over named parameters, and the learning rate's course. Element by element and
// in a fixed order of operations, so that a parameter's new value depends on nothing but its own
// value, gradient and state.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// A weight to be updated; the tensors are handles to the model's own.
struct Weight {
  std::string name;
  at::Tensor value;
  at::Tensor gradient;  // fp32
  bool decay = true;    // weight decay applies
  bool counted = true;  // in norms: of the ranks that hold it, one does
};

enum class OptimizerKind { adamw, sgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // on matrices only
};

class Optimizer {
 public:
  // Where weights are not fp32, fp32 masters are kept.
  Optimizer(const OptimizerOptions& options, const std::vector<Weight>& weights);

  // One update with gradients times `gradient_scale`. `step` counts from 1.
  void step(std::int64_t step, double learning_rate, double gradient_scale);

  // What must be saved beside the weights: name (of weight and state) and tensor.
  struct State {
    std::string name;
    at::Tensor tensor;
  };
  std::vector<State> states() const;

 private:
  struct Slot {
    Weight weight;
    at::Tensor master;                       // fp32; undefined where the value is fp32 itself
    at::Tensor first_moment, second_moment;  // AdamW
  };

  OptimizerOptions options_;
  std::vector<Slot> slots_;
};

// Linear warm-up over `warmup_steps`, then a cosine down to `min_ratio` at `num_steps`. `step`
// from 1.
double learning_rate(double peak, std::int64_t step, std::int64_t warmup_steps,
                     std::int64_t num_steps, double min_ratio);

}  // namespace sluice
