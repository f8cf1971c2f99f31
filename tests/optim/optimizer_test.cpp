#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

Weight weight_of(const at::Tensor& value, const at::Tensor& gradient, const RowRange& own) {
  return {.name = "w", .value = value, .gradient = gradient, .own = own};
}

TEST(Optimizer, UpdatesAsTheFormulasSayInDoublePrecision) {
  at::manual_seed(1);
  const at::Tensor value = at::randn({17, 5}), gradient = at::randn({17, 5});
  at::Tensor w = value.to(at::kDouble), m = at::zeros_like(w), v = at::zeros_like(w);
  const OptimizerOptions options;
  Optimizer optimizer(options, {weight_of(value, gradient, {0, 17})});
  const double rate = 0.01, scale = 0.5;
  for (int step = 1; step <= 5; ++step) {
    gradient.copy_(at::randn({17, 5}));
    optimizer.step(step, rate, scale);
    const at::Tensor g = gradient.to(at::kDouble) * scale;
    m = options.beta1 * m + (1 - options.beta1) * g;
    v = options.beta2 * v + (1 - options.beta2) * g * g;
    w = w * (1 - rate * options.weight_decay) -
        rate * (m / (1 - std::pow(options.beta1, step))) /
            ((v / (1 - std::pow(options.beta2, step))).sqrt() + options.epsilon);
  }
  EXPECT_LT((value.to(at::kDouble) - w).abs().max().item<double>(), 1e-6);
}

TEST(Optimizer, ARowsNewValueDoesNotDependOnTheRowsUpdatedWithIt) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd})
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(2);
      const at::Tensor start = at::randn({29, 7}).to(type), gradient = at::randn({29, 7});
      const at::Tensor whole = start.clone(), parts = start.clone();
      Optimizer at_once({.kind = kind}, {weight_of(whole, gradient, {0, 29})});
      std::vector<Optimizer> ranks;
      for (const RowRange own : {RowRange{0, 3}, RowRange{3, 4}, RowRange{4, 29}})
        ranks.emplace_back(OptimizerOptions{.kind = kind},
                           std::vector{weight_of(parts, gradient, own)});
      for (int step = 1; step <= 3; ++step) {
        at_once.step(step, 0.1, 0.3);
        for (Optimizer& rank : ranks)
          rank.step(step, 0.1, 0.3);
        EXPECT_TRUE(at::equal(whole, parts));
      }
    }
}

TEST(Optimizer, GoesBackToWhatItKept) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(3);
    const at::Tensor value = at::randn({8, 4}).to(type), gradient = at::randn({8, 4});
    Optimizer optimizer({}, {weight_of(value, gradient, {2, 6})});
    optimizer.step(1, 0.1, 1);
    const at::Tensor before = value.clone();
    std::vector<at::Tensor> states;
    for (const Optimizer::State& state : optimizer.states()) {
      EXPECT_EQ(state.weight, "w");
      EXPECT_EQ(state.own, (RowRange{2, 6}));
      states.push_back(state.tensor.clone());
    }
    for (int round = 0; round < 2; ++round) {
      optimizer.keep();
      gradient.fill_(NAN);
      optimizer.step(2, 0.1, 1);
      EXPECT_FALSE(at::equal(value, before));
      optimizer.restore();
      EXPECT_TRUE(at::equal(value, before));
      const auto now = optimizer.states();
      for (std::size_t n = 0; n < states.size(); ++n)
        EXPECT_TRUE(at::equal(now[n].tensor, states[n])) << now[n].name;
    }
  }
}

TEST(Optimizer, ClipsWhatIsLongerThanTheLimit) {
  EXPECT_EQ(clip_scale(2, 0.5), 0.25);
  EXPECT_EQ(clip_scale(0.5, 0.5), 1);
  EXPECT_EQ(clip_scale(1e9, 0), 1);  // no limit
}

}  // namespace
}  // namespace sluice
