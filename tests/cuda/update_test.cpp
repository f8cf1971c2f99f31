// The loss, updates and sums of squares on a GPU against the same on the CPU.
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/on_gpu.h"
#include "sluice/base/counter_random.h"
#include "sluice/cuda/functions.h"

namespace sluice {
namespace {

using test::distance;
using test::Placed;
using test::random;
using test::tolerance;
using test::wide;

class CudaLoss : public test::OnGpu {};
class CudaUpdate : public test::OnGpu {};
class CudaSquares : public test::OnGpu {};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor doubles_on_gpu(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
}

// Adds the rows' losses to `loss` and gives the gradient, in fp64.
at::Tensor loss_reference(const at::Tensor& logits, const at::Tensor& targets, double scale,
                          double& loss) {
  const at::Tensor x = wide(logits), lost = targets.ge(0);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor losses = at::logsumexp(x, 1) - x.gather(1, index).squeeze(1);
  loss += at::where(lost, losses, 0.0).sum().item<double>();
  at::Tensor gradient = at::softmax(x, 1);
  gradient.scatter_add_(1, index, at::full(index.sizes(), -1, at::kDouble));
  return at::where(lost.unsqueeze(1), gradient, 0.0) * scale;
}

TEST_F(CudaLoss, IsTheCrossEntropyAndTheLogitsBecomeItsGradient) {
  struct Shape {
    std::int64_t tokens, words;
  };
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const Shape s : {Shape{1, 1}, Shape{3, 11}, Shape{1000, 11}, Shape{5, 4096},
                          Shape{40, 32000}, Shape{9, 50257}, Shape{3, 140001}})
      for (const std::int64_t offset : {0, 1, 5}) {
        SCOPED_TRACE(
            fmt::format("{} {} x {} at {}", c10::toString(type), s.tokens, s.words, offset));
        const at::Tensor logits = random({s.tokens, s.words}, type, 3, 20);
        at::Tensor targets = at::randint(s.words, {s.tokens}, at::kLong);
        targets[s.tokens / 2] = s.words - 1;
        targets[s.tokens - 1] = 0;
        if (s.tokens > 2) targets[1] = -1;
        double loss = 2.5;
        const double scale = 0.25;
        const at::Tensor gradient = loss_reference(logits, targets, scale, loss);

        Placed only_loss(logits, offset), with_gradient(logits, offset);
        at::Tensor sum = doubles_on_gpu({1}, 2.5);
        cuda::cross_entropy(only_loss.tensor, targets.cuda(), scale, false, sum);
        EXPECT_LT(std::abs(sum.item<double>() - loss) / loss, 2e-6);
        EXPECT_TRUE(at::equal(only_loss.tensor.cpu(), logits));
        sum.fill_(2.5);
        cuda::cross_entropy(with_gradient.tensor, targets.cuda(), scale, true, sum);
        EXPECT_LT(std::abs(sum.item<double>() - loss) / loss, 2e-6);
        EXPECT_LT(distance(with_gradient.tensor, gradient), tolerance(type));
        EXPECT_TRUE(with_gradient.fence_stands());
      }
}

TEST_F(CudaLoss, HoldsForLogitsFarOutAndForWordsThatCannotBe) {
  at::Tensor logits = random({4, 3000}, at::kFloat);
  logits[0] += 1e4;
  logits[1] -= 1e4;
  logits[2].slice(0, 100, 2000).fill_(-kInfinity);
  logits[2] -= 300;
  logits[3] *= 1e4;
  const at::Tensor targets = at::tensor(std::vector<std::int64_t>{7, 2999, 2500, 5});
  double loss = 0;
  const at::Tensor gradient = loss_reference(logits, targets, 1, loss);
  at::Tensor there = logits.cuda(), sum = doubles_on_gpu({1}, 0);
  cuda::cross_entropy(there, targets.cuda(), 1, true, sum);
  EXPECT_LT(std::abs(sum.item<double>() - loss) / loss, 2e-6);
  EXPECT_LT(distance(there, gradient), 2e-6);
}

TEST_F(CudaLoss, OfLogitsThatAreNoNumbersIsNone) {
  at::Tensor logits = random({1, 100}, at::kBFloat16);
  logits[0][70] = std::nan("");
  at::Tensor there = logits.cuda(), sum = doubles_on_gpu({1}, 0);
  cuda::cross_entropy(there, at::zeros({1}, at::kLong).cuda(), 1, true, sum);
  EXPECT_TRUE(std::isnan(sum.item<double>()));
}

// As optim/optimizer.cpp has it, of fp32 numbers.
void update_reference(const cuda::UpdateRates& r, at::Tensor& value, const at::Tensor& gradient,
                      at::Tensor& first, at::Tensor& second) {
  float* v = value.mutable_data_ptr<float>();
  const float* g_at = gradient.const_data_ptr<float>();
  for (std::int64_t n = 0; n < value.numel(); ++n) {
    const float g = g_at[n] * r.scale;
    if (!first.defined()) {
      v[n] = v[n] * r.keep - r.rate * g;
      continue;
    }
    float& m = first.mutable_data_ptr<float>()[n];
    float& s = second.mutable_data_ptr<float>()[n];
    m = m * r.beta1 + g * r.rest1;
    s = s * r.beta2 + g * g * r.rest2;
    const float size = std::sqrt(s / r.correction) + r.epsilon;
    v[n] = v[n] * r.keep - r.rate * m / size;
  }
}

constexpr cuda::UpdateRates kRates = {.scale = 0.7f,
                                      .keep = 0.999f,
                                      .rate = 0.013f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .rest1 = 0.1f,
                                      .rest2 = 0.05f,
                                      .correction = 0.14f,
                                      .epsilon = 1e-8f};

TEST_F(CudaUpdate, FollowsTheFormulasAndInFp32HasTheirBits) {
  for (const std::int64_t count : {1, 7, 2048, 100003})
    for (const std::int64_t offset : {0, 1})
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
        for (const auto gradient_type : {at::kFloat, at::kBFloat16})
          for (const auto moment_type : {at::kFloat, at::kBFloat16, at::kBool})
            for (const bool masters : {false, true}) {
              if (masters && type == at::kFloat) continue;
              const bool moments = moment_type != at::kBool;  // else there are none
              SCOPED_TRACE(fmt::format("{} of {} at {}, gradient {}, moments {}, masters {}", count,
                                       c10::toString(type), offset, c10::toString(gradient_type),
                                       c10::toString(moment_type), masters));
              const at::Tensor value = random({count}, type),
                               gradient = random({count}, gradient_type);
              const at::Tensor first = moments ? random({count}, moment_type, 0.3) : at::Tensor(),
                               second = moments ? random({count}, moment_type, 0.3).square()
                                                : at::Tensor();
              at::Tensor want = value.to(at::kFloat, false, true), want_first, want_second;
              if (masters) want = want + at::rand({count}) * 1e-4;
              const Placed value_there(value, offset), gradient_there(gradient, offset),
                  master_there(want, offset), first_there(moments ? first : value, offset),
                  second_there(moments ? second : value, offset);
              cuda::Update update;
              update.value = value_there.tensor;
              update.gradient = gradient_there.tensor;
              if (masters) update.master = master_there.tensor;
              if (moments) {
                update.first_moment = first_there.tensor;
                update.second_moment = second_there.tensor;
                want_first = first.to(at::kFloat, false, true);
                want_second = second.to(at::kFloat, false, true);
              }
              update.rates = kRates;
              cuda::update(update);
              update_reference(kRates, want, gradient.to(at::kFloat), want_first, want_second);

              const bool exact = moment_type != at::kBFloat16;
              const at::Tensor got = masters ? update.master.cpu() : update.value.cpu();
              if (exact) {
                EXPECT_TRUE(at::equal(got, want.to(got.scalar_type())));
              } else {
                EXPECT_LT(distance(got, want), tolerance(got.scalar_type()));
              }
              if (masters) {
                EXPECT_TRUE(at::equal(update.value.cpu(), got.to(type)));
              }
              if (moments) {
                EXPECT_TRUE(at::equal(update.first_moment.cpu(), want_first.to(moment_type)));
                EXPECT_TRUE(at::equal(update.second_moment.cpu(), want_second.to(moment_type)));
              }
              for (const Placed* there : {&value_there, &master_there, &first_there, &second_there})
                EXPECT_TRUE(there->fence_stands());
            }
}

// `count` numbers `start` after SGD has added `step` to them, rounded by chance.
at::Tensor stepped(at::ScalarType type, std::int64_t count, float start, float step,
                   std::uint64_t seed) {
  cuda::Update update;
  update.value = at::full({count}, start, at::TensorOptions(at::kCUDA).dtype(type));
  update.gradient = at::full({count}, -step, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  update.rates.rate = 1;
  update.stochastic = true;
  update.seed = seed;
  cuda::update(update);
  return update.value.cpu();
}

TEST_F(CudaUpdate, RoundsByChanceToTheRightMean) {
  struct Case {
    at::ScalarType type;
    float start, step, gap;  // between the two numbers that can come out
  };
  const std::int64_t count = 1 << 20;
  for (const Case& c :
       {Case{at::kBFloat16, 1, 0x1p-9f, 0x1p-7f}, Case{at::kBFloat16, -3, -0x1.8p-8f, 0x1p-6f},
        Case{at::kBFloat16, 1e-30f, 0, 1e-30f}, Case{at::kHalf, 1, 0x1p-12f, 0x1p-10f},
        Case{at::kHalf, -5, 0x1p-10f, 0x1p-8f}, Case{at::kHalf, 0, 0x1.cp-25f, 0x1p-24f},
        Case{at::kHalf, -0x1p-20f, -0x1p-26f, 0x1p-24f}}) {
    SCOPED_TRACE(fmt::format("{} {} + {}", c10::toString(c.type), c.start, c.step));
    const double begin = at::full({1}, c.start, c.type).item<double>();
    const at::Tensor out = wide(stepped(c.type, count, c.start, c.step, 5));
    EXPECT_LE((out - begin).abs().max().item<double>(), c.gap);
    // Five standard deviations of the mean.
    EXPECT_NEAR((out - begin).mean().item<double>(), c.step,
                5 * 0.5 * c.gap / std::sqrt(static_cast<double>(count)));
    if (c.step == 0) {
      EXPECT_TRUE(out.eq(begin).all().item<bool>());
    }
  }
}

TEST_F(CudaUpdate, RoundsBySeedAndElementAsTheCpuDoes) {
  const std::int64_t count = 1000;
  const float sum = 1 + 0x1p-9f;
  at::Tensor want = at::empty({count}, at::kInt);
  for (std::int64_t n = 0; n < count; ++n)
    want[n] = static_cast<std::int64_t>(round_stochastic(
        std::bit_cast<std::uint32_t>(sum), random_bits(11, static_cast<std::uint64_t>(n))));
  const at::Tensor got = stepped(at::kBFloat16, count, 1, 0x1p-9f, 11);
  EXPECT_TRUE(at::equal(got.view(at::kShort).to(at::kInt), want));
  EXPECT_FALSE(at::equal(got, stepped(at::kBFloat16, count, 1, 0x1p-9f, 5000)));
}

TEST_F(CudaUpdate, RoundsMomentsByChanceAndApartFromTheWeight) {
  const std::int64_t count = 1 << 20;
  const auto on_gpu = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  cuda::Update update;
  update.value = at::ones({count}, on_gpu);
  update.first_moment = at::zeros({count}, on_gpu);
  update.second_moment = at::zeros({count}, on_gpu);
  update.gradient = at::full({count}, 1 + 0x1p-8f, on_gpu.dtype(at::kFloat));
  update.rates = {.rate = -0x1p-8f, .rest1 = 1, .rest2 = 1, .epsilon = 0};
  update.stochastic = true;
  update.seed = 3;
  cuda::update(update);  // weight and first moment are half a step above 1
  const auto up = [](const at::Tensor& x) { return wide(x).gt(1.001).to(at::kDouble); };
  const at::Tensor value = up(update.value), first = up(update.first_moment);
  EXPECT_NEAR(value.mean().item<double>(), 0.5, 0.004);
  EXPECT_NEAR(first.mean().item<double>(), 0.5, 0.004);
  EXPECT_NEAR((value * first).mean().item<double>(), 0.25, 0.004);
  const double square = std::pow(1 + 0x1p-8, 2);
  EXPECT_NEAR(wide(update.second_moment).mean().item<double>(), square, 2e-5);
}

TEST_F(CudaUpdate, RoundsNothingToAndFromInfinity) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const float most = type == at::kHalf ? 65504.f : 0x1.fep127f;
    EXPECT_TRUE(at::isfinite(stepped(type, 1000, most, 0, 1)).all().item<bool>());
    EXPECT_TRUE(at::isfinite(stepped(type, 1000, -most, most / 1024, 1)).all().item<bool>());
    EXPECT_TRUE(at::isinf(stepped(type, 1000, 1, kInfinity, 1)).all().item<bool>());
    EXPECT_TRUE(at::isnan(stepped(type, 1000, 1, std::nanf(""), 1)).all().item<bool>());
  }
}

TEST_F(CudaSquares, AreSummedByBlocksOfRows) {
  struct Case {
    std::int64_t rows, width;
    std::vector<std::int64_t> bounds;
  };
  std::vector<std::int64_t> many = {0}, few = {0};
  for (std::int64_t b = 1; b <= 64; ++b) {
    many.push_back(2048 * b / 64);
    few.push_back(7 * b / 64);  // most of them empty
  }
  for (const Case& c : {Case{1, 1, {0, 1}}, Case{7, 37, {0, 0, 3, 3, 7, 7}}, Case{7, 1000, few},
                        Case{2048, 1031, many}, Case{600, 5504, {0, 600}}, Case{9, 5, {2, 4, 8}}})
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const std::int64_t offset : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} {} x {} at {}", c10::toString(type), c.rows, c.width, offset));
        const at::Tensor gradient = random({c.rows, c.width}, type, 0.01);
        const Placed there(gradient, offset);
        const auto ranges = static_cast<std::int64_t>(c.bounds.size()) - 1;
        at::Tensor out = doubles_on_gpu({ranges}, std::nan("")), again = at::empty_like(out);
        cuda::block_squares(there.tensor, c.bounds, out);
        cuda::block_squares(there.tensor, c.bounds, again);
        EXPECT_TRUE(at::equal(out, again));
        for (std::int64_t b = 0; b < ranges; ++b) {
          const auto n = static_cast<std::size_t>(b);
          const double want =
              wide(gradient.slice(0, c.bounds[n], c.bounds[n + 1])).square().sum().item<double>();
          EXPECT_NEAR(out[b].item<double>(), want, 1e-10 * want) << b;
        }
      }
}

TEST_F(CudaSquares, OfNumbersWhoseSquaresFp32CannotHoldAreRight) {
  const at::Tensor gradient = at::tensor(std::vector<float>{1e30f, 1e-30f}).view({2, 1}).cuda();
  at::Tensor out = doubles_on_gpu({2}, 0);
  cuda::block_squares(gradient, {0, 1, 2}, out);
  EXPECT_NEAR(out[0].item<double>() / 1e60, 1, 1e-6);
  EXPECT_NEAR(out[1].item<double>() / 1e-60, 1, 1e-6);
}

}  // namespace
}  // namespace sluice
