#include "sluice/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "sluice/optim/muon.h"

namespace sluice {
namespace {

Weight weight_of(const at::Tensor& value, const at::Tensor& gradient, const RowRange& own) {
  return {.name = "w", .value = value, .gradient = gradient, .own = own};
}

// Everything in bf16, and what changes rounded stochastically.
OptimizerConfig narrow(OptimizerKind kind = OptimizerKind::adamw) {
  return {.name = kind,
          .master_weights = false,
          .state_dtype = NumberType::bfloat16,
          .rounding = Rounding::stochastic};
}
constexpr std::uint64_t kSeed = 5;  // of what is rounded stochastically

TEST(Optimizer, UpdatesAsTheFormulasSayInDoublePrecision) {
  at::manual_seed(1);
  const at::Tensor value = at::randn({17, 5}), gradient = at::randn({17, 5});
  at::Tensor w = value.to(at::kDouble), m = at::zeros_like(w), v = at::zeros_like(w);
  const OptimizerConfig config;
  Optimizer optimizer(config, kSeed, {weight_of(value, gradient, {0, 17})});
  const double rate = 0.01, scale = 0.5;
  for (int step = 1; step <= 5; ++step) {
    gradient.copy_(at::randn({17, 5}));
    optimizer.step(step, rate, scale);
    const at::Tensor g = gradient.to(at::kDouble) * scale;
    m = config.beta1 * m + (1 - config.beta1) * g;
    v = config.beta2 * v + (1 - config.beta2) * g * g;
    w = w * (1 - rate * config.weight_decay) -
        rate * (m / (1 - std::pow(config.beta1, step))) /
            ((v / (1 - std::pow(config.beta2, step))).sqrt() + config.eps);
  }
  EXPECT_LT((value.to(at::kDouble) - w).abs().max().item<double>(), 1e-6);
}

// The definition, with a product over all steps.
TEST(Optimizer, NAdamUpdatesAsTheFormulasSayInDoublePrecision) {
  at::manual_seed(6);
  const at::Tensor value = at::randn({17, 5}), gradient = at::randn({17, 5});
  at::Tensor w = value.to(at::kDouble), m = at::zeros_like(w), v = at::zeros_like(w);
  const OptimizerConfig config{.name = OptimizerKind::nadam, .beta1 = 0.99};
  const std::vector<Weight> weights = {weight_of(value, gradient, {0, 17})};
  auto optimizer = std::make_unique<Optimizer>(config, kSeed, weights);
  const double rate = 0.01, scale = 0.5;
  const auto momentum = [&](int n) {
    return config.beta1 * (1 - 0.5 * std::pow(0.96, n * config.momentum_decay));
  };
  for (int step = 1; step <= 20; ++step) {
    gradient.copy_(at::randn({17, 5}));
    if (step == 11) {  // what the momentum has been is not lost with the object
      auto resumed = std::make_unique<Optimizer>(config, kSeed, weights);
      for (std::size_t n = 0; n < 2; ++n)
        resumed->states()[n].tensor.copy_(optimizer->states()[n].tensor);
      optimizer = std::move(resumed);
    }
    optimizer->step(step, rate, scale);
    const at::Tensor g = gradient.to(at::kDouble) * scale;
    m = config.beta1 * m + (1 - config.beta1) * g;
    v = config.beta2 * v + (1 - config.beta2) * g * g;
    double product = 1;
    for (int n = 1; n <= step; ++n)
      product *= momentum(n);
    const at::Tensor ahead = momentum(step + 1) * m / (1 - product * momentum(step + 1)) +
                             (1 - momentum(step)) * g / (1 - product);
    w = w * (1 - rate * config.weight_decay) -
        rate * ahead / ((v / (1 - std::pow(config.beta2, step))).sqrt() + config.eps);
  }
  EXPECT_LT((value.to(at::kDouble) - w).abs().max().item<double>(), 1e-6);
}

Weight matrix_of(const at::Tensor& value, const at::Tensor& gradient) {
  Weight weight = weight_of(value, gradient, {0, value.size(0)});
  weight.matrix = Weight::Matrix{value.size(0), value.size(1), 0};
  return weight;
}

TEST(Optimizer, MuonUpdatesAsTheFormulasSayInDoublePrecision) {
  for (const auto& [rows, columns] : {std::pair{24, 24}, {40, 12}, {12, 40}, {1, 7}})
    for (const MuonScale scaling : {MuonScale::adamw, MuonScale::spectral}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns);
      at::manual_seed(7);
      const at::Tensor value = 0.1 * at::randn({rows, columns});
      const at::Tensor gradient = at::empty_like(value);
      const at::Tensor norm = at::randn({columns}), norm_gradient = at::empty_like(norm);
      at::Tensor w = value.to(at::kDouble), sum = at::zeros_like(w);
      const at::Tensor alone = norm.clone();
      const OptimizerConfig config{.name = OptimizerKind::muon, .muon_scale = scaling};
      Weight vector = weight_of(norm, norm_gradient, {0, columns});
      Optimizer optimizer(config, kSeed, {matrix_of(value, gradient), vector});
      vector.value = alone;
      Optimizer adamw({}, kSeed, {vector});
      const double rate = 0.01, scale = 0.5;
      for (int step = 1; step <= 20; ++step) {
        gradient.copy_(at::randn({rows, columns}));
        norm_gradient.copy_(at::randn({columns}));
        optimizer.step(step, rate, scale);
        adamw.step(step, rate, scale);
        const at::Tensor g = gradient.to(at::kDouble) * scale;
        sum = config.momentum * sum + g;
        at::Tensor x = g + config.momentum * sum;
        x = x / at::norm(x);
        for (int n = 0; n < 5; ++n) {
          const at::Tensor a = at::mm(x, x.t());
          x = 3.4445 * x + at::mm(-4.7750 * a + 2.0315 * at::mm(a, a), x);
        }
        const double factor = scaling == MuonScale::adamw
                                  ? 0.2 * std::sqrt(std::max(rows, columns))
                                  : std::sqrt(std::max(1.0, 1.0 * rows / columns));
        w = w * (1 - rate * config.weight_decay) - rate * factor * x;
      }
      EXPECT_LT((value.to(at::kDouble) - w).abs().max().item<double>(), 1e-6);
      EXPECT_TRUE(at::equal(norm, alone));  // what is no matrix is AdamW's
    }
}

TEST(Optimizer, MuonBringsSingularValuesNearOne) {
  at::manual_seed(8);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({3, 16, 48}) * at::logspace(-3, 3, 3).view({3, 1, 1});
    const at::Tensor values = std::get<1>(at::linalg_svd(orthogonalized(x, 5, type)));
    EXPECT_GT(values.min().item<double>(), 0.6);
    EXPECT_LT(values.max().item<double>(), 1.3);
  }
  EXPECT_TRUE(at::equal(orthogonalized(at::zeros({4, 3}), 5, at::kFloat), at::zeros({4, 3})));
}

TEST(Optimizer, ARowsNewValueDoesNotDependOnTheRowsUpdatedWithIt) {
  for (const OptimizerConfig& config :
       {OptimizerConfig{}, OptimizerConfig{.name = OptimizerKind::sgd},
        OptimizerConfig{.name = OptimizerKind::nadam}, narrow(), narrow(OptimizerKind::sgd),
        narrow(OptimizerKind::nadam)})
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(2);
      const at::Tensor start = at::randn({29, 7}).to(type), gradient = at::randn({29, 7});
      const at::Tensor whole = start.clone(), parts = start.clone();
      Optimizer at_once(config, kSeed, {weight_of(whole, gradient, {0, 29})});
      std::vector<Optimizer> ranks;
      for (const RowRange own : {RowRange{0, 3}, RowRange{3, 4}, RowRange{4, 29}})
        ranks.emplace_back(config, kSeed, std::vector{weight_of(parts, gradient, own)});
      for (int step = 1; step <= 3; ++step) {
        at_once.step(step, 0.1, 0.3);
        for (Optimizer& rank : ranks)
          rank.step(step, 0.1, 0.3);
        EXPECT_TRUE(at::equal(whole, parts));
      }
    }
}

TEST(Optimizer, NarrowWeightsAndStatesFollowWideOnesToTheirRounding) {
  at::manual_seed(4);
  const at::Tensor start = at::randn({65, 33}).to(at::kBFloat16);
  const at::Tensor wide = start.to(at::kFloat), small = start.clone();
  const at::Tensor gradient = at::empty({65, 33}, at::kBFloat16);
  OptimizerConfig config = narrow();
  config.rounding = Rounding::nearest;
  Optimizer reference({}, kSeed, {weight_of(wide, gradient, {0, 65})});
  Optimizer optimizer(config, kSeed, {weight_of(small, gradient, {0, 65})});
  for (int step = 1; step <= 3; ++step) {
    gradient.copy_(at::randn({65, 33}));
    reference.step(step, 0.1, 1);
    optimizer.step(step, 0.1, 1);
  }
  // A rounding is at most 2^-9 of a number; three of them add up, and so do those of the moments.
  const auto distance = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a.to(at::kFloat) - b).norm() / b.norm()).item<double>();
  };
  EXPECT_LT(distance(small, wide), 4e-3);
  EXPECT_GT(distance(small, wide), 0);
  const auto states = optimizer.states(), wide_states = reference.states();
  ASSERT_EQ(states.size(), 2U);  // no master
  for (std::size_t n = 0; n < states.size(); ++n) {
    EXPECT_EQ(states[n].name, wide_states[n].name);
    EXPECT_EQ(states[n].tensor.scalar_type(), at::kBFloat16);
    EXPECT_LT(distance(states[n].tensor, wide_states[n].tensor), 4e-3);
  }
}

TEST(Optimizer, ANarrowWeightIsRoundedOnceFromItsWideUpdate) {
  at::manual_seed(5);
  const at::Tensor start = at::randn({9, 5}).to(at::kBFloat16), gradient = at::randn({9, 5});
  const at::Tensor wide = start.to(at::kFloat), small = start.clone(), chance = start.clone();
  OptimizerConfig config = narrow();
  Optimizer(config, kSeed, {weight_of(wide, gradient, {0, 9})}).step(1, 0.01, 1);
  Optimizer(config, kSeed, {weight_of(chance, gradient, {0, 9})}).step(1, 0.01, 1);
  config.rounding = Rounding::nearest;
  Optimizer(config, kSeed, {weight_of(small, gradient, {0, 9})}).step(1, 0.01, 1);
  EXPECT_TRUE(at::equal(small, wide.to(at::kBFloat16)));
  // By chance it is one of its two neighbours.
  EXPECT_FALSE(at::equal(small, chance));
  const at::Tensor off = (chance.to(at::kFloat) - wide).abs();
  EXPECT_TRUE(at::all(off.lt(wide.abs() / 128)).item<bool>());
}

TEST(Optimizer, StochasticRoundingLosesNoUpdateOnAverage) {
  // 2^-12 of the step between 1 and its lower neighbour in bf16, which is 2^-8.
  const at::Tensor gradient = at::full({400, 100}, 0x1p-12);
  const auto mean_after = [&](Rounding rounding) {
    const at::Tensor value = at::ones({400, 100}, at::kBFloat16);
    OptimizerConfig config = narrow(OptimizerKind::sgd);
    config.weight_decay = 0;
    config.rounding = rounding;
    Optimizer optimizer(config, kSeed, {weight_of(value, gradient, {0, 400})});
    for (int step = 1; step <= 8; ++step)
      optimizer.step(step, 1, 1);
    return value.to(at::kDouble).mean().item<double>();
  };
  EXPECT_EQ(mean_after(Rounding::nearest), 1);
  // 40000 elements, each with a variance of 8 x 2^-12 x 2^-8: four deviations.
  EXPECT_NEAR(mean_after(Rounding::stochastic), 1 - 8 * 0x1p-12, 4 * std::sqrt(0x1p-17 / 40000));
}

TEST(Optimizer, StochasticRoundingIsDrawnFromSeedStepNameAndPlace) {
  at::manual_seed(6);
  const at::Tensor start = at::randn({12, 40}).to(at::kBFloat16), gradient = at::randn({12, 40});
  const auto updated = [&](Weight weight, int step = 1, std::uint64_t seed = kSeed) {
    weight.value = weight.value.clone();
    // The same rate and corrections at every step.
    Optimizer(narrow(OptimizerKind::sgd), seed, {weight}).step(step, 1e-3, 1);
    return weight.value;
  };
  const Weight weight = weight_of(start, gradient, {0, 12});
  const at::Tensor once = updated(weight);
  EXPECT_TRUE(at::equal(updated(weight), once));
  EXPECT_FALSE(at::equal(updated(weight, 2), once));
  EXPECT_FALSE(at::equal(updated(weight, 1, kSeed + 1), once));
  Weight other = weight;
  other.name = "other";
  EXPECT_FALSE(at::equal(updated(other), once));
  other.drawn_as = "w";
  EXPECT_TRUE(at::equal(updated(other), once));
  // Rows that another rank holds draw by their place in the whole.
  Weight part = weight_of(start.slice(0, 5), gradient.slice(0, 5), {0, 7});
  EXPECT_FALSE(at::equal(updated(part), once.slice(0, 5)));
  part.place = 5 * 40;
  EXPECT_TRUE(at::equal(updated(part), once.slice(0, 5)));
}

TEST(Optimizer, GoesBackToWhatItKept) {
  for (const OptimizerConfig& config : {OptimizerConfig{}, narrow()})
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(3);
      const at::Tensor value = at::randn({8, 4}).to(type), gradient = at::randn({8, 4});
      Optimizer optimizer(config, kSeed, {weight_of(value, gradient, {2, 6})});
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
