// Every function against ATen in fp64 on the CPU, of the same inputs.
#include "sluice/cuda/functions.h"

#include <numeric>

#include "cuda/on_gpu.h"
#include "sluice/base/error.h"

namespace sluice {
namespace {

using test::distance;
using test::Placed;
using test::poison_like;
using test::random;
using test::sizes_of;
using test::tolerance;
using test::wide;

class CudaFunctions : public test::OnGpu {};

constexpr double kEpsilon = 1e-5;

struct Shape {
  std::int64_t tokens, columns;
};
// Rows within and beyond what registers hold, multiples of 16 bytes and not.
const std::vector<Shape> kShapes = {{1, 1},    {3, 1},     {1000, 1},   {1, 7},     {3, 7},
                                    {1000, 7}, {1000, 64}, {1000, 129}, {1, 2048},  {1000, 2048},
                                    {3, 5504}, {40, 8200}, {40, 8201},  {20, 20000}};

// use(type, shape, offset): fp16 with some shapes only.
template <typename Use>
void for_each_case(const Use& use) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const Shape& shape : kShapes)
      for (const std::int64_t offset : {0, 1}) {
        if (type == at::kHalf && shape.tokens != 1000) continue;
        if (offset == 1 && shape.tokens != 1000 && shape.columns < 5504) continue;
        SCOPED_TRACE(fmt::format("{} {} x {} at {}", c10::toString(type), shape.tokens,
                                 shape.columns, offset));
        use(type, shape, offset);
      }
}

at::Tensor with_gradient(const at::Tensor& x) { return wide(x).set_requires_grad(true); }

// y of rows in fp64.
at::Tensor norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor from = bias.defined() ? x - x.mean(-1, true) : x;
  const at::Tensor y = from * (from.square().mean(-1, true) + kEpsilon).rsqrt() * weight;
  return bias.defined() ? y + bias : y;
}

TEST_F(CudaFunctions, NormsAreThoseOfTheFormulas) {
  for_each_case([](at::ScalarType type, const Shape& shape, std::int64_t offset) {
    const at::Tensor x = random({shape.tokens, shape.columns}, type, 2, 3);
    const at::Tensor addend = random(x.sizes(), type);
    const at::Tensor weight = random({shape.columns}, type, 0.2, 1),
                     some_bias = random({shape.columns}, type);
    const Placed x_there(x, offset), addend_there(addend, offset), weight_there(weight, offset),
        bias_there(some_bias, offset);
    for (const bool layer_norm : {false, true}) {
      const at::Tensor bias = layer_norm ? some_bias : at::Tensor();
      const at::Tensor bias_tensor = layer_norm ? bias_there.tensor : at::Tensor();
      const at::Tensor wide_bias = layer_norm ? wide(bias) : bias;
      poison_like(x);
      const cuda::NormResult plain =
          cuda::norm(x_there.tensor, weight_there.tensor, bias_tensor, kEpsilon);
      EXPECT_LT(distance(plain.y, norm_reference(wide(x), wide(weight), wide_bias)),
                tolerance(type));

      poison_like(x);
      at::Tensor sum;
      const cuda::NormResult both = cuda::add_norm(x_there.tensor, addend_there.tensor,
                                                   weight_there.tensor, bias_tensor, kEpsilon, sum);
      const at::Tensor rounded = (wide(x) + wide(addend)).to(type);
      EXPECT_TRUE(at::equal(sum.cpu(), rounded));
      EXPECT_LT(distance(both.y, norm_reference(wide(rounded), wide(weight), wide_bias)),
                tolerance(type));
      const at::Tensor mean = wide(rounded).mean(-1, true);
      const at::Tensor from = layer_norm ? wide(rounded) - mean : wide(rounded);
      EXPECT_LT(distance(both.rstd, (from.square().mean(-1, true) + kEpsilon).rsqrt()), 2e-6);
      EXPECT_EQ(both.rstd.sizes().vec(), (std::vector<std::int64_t>{shape.tokens, 1}));
      ASSERT_EQ(both.mean.defined(), layer_norm);
      if (layer_norm) {
        EXPECT_LT(distance(both.mean, mean), 2e-6);
      }
    }
  });
}

TEST_F(CudaFunctions, NormGradientsAreThoseOfTheFormulas) {
  for_each_case([](at::ScalarType type, const Shape& shape, std::int64_t offset) {
    const at::Tensor x = random({shape.tokens, shape.columns}, type, 2, 1);
    const at::Tensor dy = random(x.sizes(), type), addend = random(x.sizes(), type);
    const at::Tensor weight = random({shape.columns}, type, 0.2, 1);
    const Placed x_there(x, offset), dy_there(dy, offset), weight_there(weight, offset),
        addend_there(addend, offset);
    for (const bool layer_norm : {false, true}) {
      // Of one column a norm leaves little or nothing, and its gradient is mostly rounding.
      const bool vanishes = shape.columns == 1;
      if (layer_norm && vanishes) continue;
      const double limit = vanishes ? 1e-2 : tolerance(type);
      const at::Tensor wide_x = with_gradient(x), wide_weight = with_gradient(weight);
      const at::Tensor bias = layer_norm ? with_gradient(at::zeros({shape.columns})) : at::Tensor();
      norm_reference(wide_x, wide_weight, bias).backward(wide(dy));
      const at::Tensor from = layer_norm ? wide(x) - wide(x).mean(-1, true) : wide(x);
      const at::Tensor mean =
          layer_norm ? wide(x).mean(-1, true).to(at::kFloat).cuda() : at::Tensor();
      const at::Tensor rstd =
          (from.square().mean(-1, true) + kEpsilon).rsqrt().to(at::kFloat).cuda();
      for (const bool adds : {false, true}) {
        if (vanishes && !adds) continue;
        const auto compute = [&] {
          poison_like(x);
          return cuda::norm_backward(dy_there.tensor, x_there.tensor, weight_there.tensor, mean,
                                     rstd, adds ? addend_there.tensor : at::Tensor());
        };
        const cuda::NormGradient out = compute();
        EXPECT_LT(distance(out.dx, adds ? wide_x.grad() + wide(addend) : wide_x.grad()), limit);
        EXPECT_LT(distance(out.d_weight, wide_weight.grad()), 1e-5);
        ASSERT_EQ(out.d_bias.defined(), layer_norm);
        if (layer_norm) {
          EXPECT_LT(distance(out.d_bias, bias.grad()), 1e-5);
        }
        const cuda::NormGradient again = compute();
        EXPECT_TRUE(at::equal(out.dx, again.dx) && at::equal(out.d_weight, again.d_weight));
      }
    }
  });
}

at::Tensor activation_reference(cuda::Activation kind, const at::Tensor& u) {
  if (kind != cuda::Activation::swiglu)
    return at::gelu(u, kind == cuda::Activation::gelu_erf ? "none" : "tanh");
  const auto halves = u.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

TEST_F(CudaFunctions, ActivationsAndTheirGradientsAreATens) {
  for_each_case([](at::ScalarType type, const Shape& shape, std::int64_t offset) {
    if (shape.tokens * shape.columns < 7) return;  // one far out would be all there is
    for (const auto kind :
         {cuda::Activation::gelu_tanh, cuda::Activation::gelu_erf, cuda::Activation::swiglu}) {
      const bool gated = kind == cuda::Activation::swiglu;
      const at::Tensor u = random({shape.tokens, shape.columns * (gated ? 2 : 1)}, type, 2);
      const at::Tensor da = random({shape.tokens, shape.columns}, type);
      const Placed u_there(u, offset), da_there(da, offset);
      const at::Tensor wide_u = with_gradient(u), a = activation_reference(kind, wide_u);
      a.backward(wide(da));
      poison_like(da);
      EXPECT_LT(distance(cuda::activation(kind, u_there.tensor), a.detach()), tolerance(type));
      poison_like(u);
      EXPECT_LT(
          distance(cuda::activation_backward(kind, da_there.tensor, u_there.tensor), wide_u.grad()),
          tolerance(type));
    }
  });
}

TEST_F(CudaFunctions, ActivationsOfLargeNumbersAreNumbers) {
  const at::Tensor large = at::tensor({-3e4f, -200.f, -88.2f, -87.f, 0.f, 87.f, 200.f, 3e4f});
  const at::Tensor u = at::cat({large, at::ones({8})}).view({1, 16}).cuda();
  const at::Tensor da = at::ones({1, 8}).cuda();
  EXPECT_LT(distance(cuda::activation(cuda::Activation::swiglu, u).view({8}), at::silu(large)),
            1e-6);
  EXPECT_TRUE(
      cuda::activation_backward(cuda::Activation::swiglu, da, u).isfinite().all().item<bool>());
  for (const auto kind : {cuda::Activation::gelu_tanh, cuda::Activation::gelu_erf}) {
    const at::Tensor x = large.view({1, 8}).cuda();
    EXPECT_LT(distance(cuda::activation(kind, x).view({8}), at::relu(large)), 1e-6);
    EXPECT_LT(distance(cuda::activation_backward(kind, da, x).view({8}),
                       at::tensor({0.f, 0.f, 0.f, 0.f, 0.5f, 1.f, 1.f, 1.f})),
              1e-6);
  }
}

struct HeadsShape {
  std::int64_t batch, length, heads, kv_heads, head_dim;
  std::int64_t tokens() const { return batch * length; }
};
const std::vector<HeadsShape> kHeadsShapes = {{1, 1, 1, 1, 2},     {2, 3, 3, 1, 6},
                                              {2, 5, 4, 2, 48},    {3, 37, 16, 4, 128},
                                              {1, 20, 33, 11, 64}, {2, 4, 2, 2, 512}};

struct Angles {
  at::Tensor cosine, sine;
};
Angles angles(std::int64_t rows, std::int64_t head_dim) {
  const at::Tensor angle = at::rand({rows, head_dim / 2}).mul_(6.3);
  return {angle.cos(), angle.sin()};
}

// x (B, heads, n, head_dim) in fp64, turned by tables of n rows or of B n.
at::Tensor turned(const at::Tensor& x, const Angles& by, bool back) {
  const std::int64_t half = x.size(3) / 2, rows = by.cosine.size(0);
  const auto table = [&](const at::Tensor& t) {
    return wide(t).view({rows / x.size(2), 1, x.size(2), half});
  };
  const at::Tensor c = table(by.cosine), s = back ? -table(by.sine) : table(by.sine);
  const at::Tensor low = x.slice(3, 0, half), high = x.slice(3, half);
  return at::cat({low * c - high * s, high * c + low * s}, 3);
}

TEST_F(CudaFunctions, RotatesTheFirstHeadsAndLeavesTheOthers) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const HeadsShape& s : kHeadsShapes)
      for (const std::int64_t offset : {0, 1})
        for (const bool shared : {true, false}) {
          const std::int64_t rotated = s.heads + s.kv_heads, all = rotated + s.kv_heads;
          const at::Tensor qkv = random({s.tokens(), all * s.head_dim}, type);
          const Angles by = angles(shared ? s.length : s.tokens(), s.head_dim);
          Placed there(qkv, offset);
          cuda::rotate(there.tensor, rotated, s.head_dim, by.cosine.cuda(), by.sine.cuda());
          const at::Tensor by_heads =
              wide(qkv).view({s.batch, s.length, all, s.head_dim}).transpose(1, 2);
          const at::Tensor reference =
              at::cat(
                  {turned(by_heads.slice(1, 0, rotated), by, false), by_heads.slice(1, rotated)}, 1)
                  .transpose(1, 2)
                  .reshape(qkv.sizes());
          const std::int64_t own = rotated * s.head_dim;
          SCOPED_TRACE(sizes_of(qkv));
          EXPECT_LT(distance(there.tensor, reference), tolerance(type));
          EXPECT_TRUE(at::equal(there.tensor.cpu().slice(1, own), qkv.slice(1, own)));
          EXPECT_TRUE(there.fence_stands());
        }
}

// The same numbers with heads side by side in memory, as attention has them.
at::Tensor beside(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

TEST_F(CudaFunctions, JoinsHeadsAndTurnsThemBack) {
  std::vector<HeadsShape> shapes = kHeadsShapes;
  shapes.push_back({2, 3, 2, 1, 7});  // no halves: without angles only
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto key_type : {type, at::kFloat})
      for (const HeadsShape& s : shapes)
        for (const bool turns : {false, true}) {
          if (turns && s.head_dim % 2 != 0) continue;
          const at::Tensor dq = random({s.batch, s.heads, s.length, s.head_dim}, type);
          const at::Tensor dk = random({s.batch, s.kv_heads, s.length, s.head_dim}, key_type),
                           dv = random(dk.sizes(), key_type);
          const Angles by = angles(s.length, std::max<std::int64_t>(s.head_dim, 2));
          const auto joined = [&](const at::Tensor& x, bool back) {
            return (back ? turned(wide(x), by, true) : wide(x))
                .transpose(1, 2)
                .reshape({s.tokens(), -1});
          };
          const at::Tensor more_q = random(dq.sizes(), type),
                           more_k = random(dk.sizes(), at::kFloat),
                           more_v = random(dk.sizes(), at::kFloat);
          for (const int way : {0, 1, 2, 3}) {
            const bool side_by_side = way % 2 == 1, adds = way > 1;
            const auto sum = [&](const at::Tensor& x, const at::Tensor& more) {
              return adds ? wide(x) + wide(more) : wide(x);
            };
            const at::Tensor reference =
                at::cat({joined(sum(dq, more_q), turns), joined(sum(dk, more_k), turns),
                         joined(sum(dv, more_v), false)},
                        1);
            const auto there = [&](const at::Tensor& x) {
              return side_by_side ? beside(x.cuda()) : x.cuda();
            };
            poison_like(dq);
            cuda::HeadGradients more;
            if (adds) more = {there(more_q), there(more_k), there(more_v)};
            const at::Tensor out = cuda::join_heads({there(dq), there(dk), there(dv)}, more,
                                                    turns ? by.cosine.cuda() : at::Tensor(),
                                                    turns ? by.sine.cuda() : at::Tensor());
            SCOPED_TRACE(sizes_of(dq));
            EXPECT_EQ(out.scalar_type(), type);
            EXPECT_LT(distance(out, reference), tolerance(type));
          }
        }
}

TEST_F(CudaFunctions, AddsGradientsToTheKeysOfSlices) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const std::int64_t head_dim : {128, 8, 7})
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{5}, {3, 1, 7}, std::vector<std::int64_t>(20, 2)}) {
        const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        std::vector<at::Tensor> keys(lengths.size() + 1), values(lengths.size() + 1);
        at::Tensor key_sum, value_sum;
        for (int round = 0; round < 3; ++round) {
          const at::Tensor dk = random({2, 3, all, head_dim}, type), dv = random(dk.sizes(), type);
          key_sum = round == 0 ? wide(dk) : key_sum + wide(dk);
          value_sum = round == 0 ? wide(dv) : value_sum + wide(dv);
          cuda::add_keys(beside(dk.cuda()), dv.cuda(), lengths, keys, values);
        }
        EXPECT_FALSE(keys.back().defined() || values.back().defined());
        keys.pop_back();
        values.pop_back();
        EXPECT_LT(distance(at::cat(keys, 2), key_sum), 1e-6);
        EXPECT_LT(distance(at::cat(values, 2), value_sum), 1e-6);
      }
}

TEST_F(CudaFunctions, JoinsTheTokensOfSlices) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::int64_t head_dim : {128, 8, 7})
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{5}, {3, 1, 7}, std::vector<std::int64_t>(20, 2)}) {
        std::vector<at::Tensor> parts, there;
        for (const std::int64_t length : lengths) {
          // Columns of wider rows, as a product gives them.
          const at::Tensor rows = random({2, length, 9, head_dim}, type);
          parts.push_back(rows.slice(2, 3, 6).transpose(1, 2));
          there.push_back(rows.cuda().slice(2, 3, 6).transpose(1, 2));
        }
        poison_like(at::cat(parts, 2));
        const at::Tensor all = cuda::join_tokens(there);
        EXPECT_TRUE(all.transpose(1, 2).is_contiguous());
        EXPECT_TRUE(at::equal(all.cpu(), at::cat(parts, 2)));
      }
}

TEST_F(CudaFunctions, MergesAttentionsByTheirStatistics) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto own_type : {type, at::kFloat})
      for (const HeadsShape& s : kHeadsShapes)
        for (const bool side_by_side : {false, true}) {
          at::Tensor a = random({s.batch, s.heads, s.length, s.head_dim}, own_type),
                     b = random(a.sizes(), type);
          at::Tensor a_lse = random({s.batch, s.heads, s.length}, at::kFloat, 3, 40),
                     b_lse = random(a_lse.sizes(), at::kFloat, 3, 40);
          // Tokens without keys on either side, whose output is anything, or on both.
          const bool empty = s.length >= 5;
          if (empty) {
            const float nan = std::numeric_limits<float>::quiet_NaN();
            a_lse.select(2, 0).fill_(kNone);
            a.select(2, 0).fill_(nan);
            b_lse.select(2, 1).fill_(kNone);
            b.select(2, 1).fill_(nan);
            a_lse.select(2, 2).fill_(kNone);
            b_lse.select(2, 2).fill_(kNone);
          }
          const at::Tensor lse = at::logaddexp(wide(a_lse), wide(b_lse));
          const auto weighted = [&](const at::Tensor& out, const at::Tensor& part) {
            const at::Tensor weight = at::where(part.isinf(), 0.0, (wide(part) - lse).exp());
            return wide(out).nan_to_num() * weight.unsqueeze(-1);
          };
          const at::Tensor reference = weighted(a, a_lse) + weighted(b, b_lse);
          Placed lse_there(a_lse, 1);
          at::Tensor own = side_by_side ? beside(a.cuda()) : a.cuda(), own_lse = lse_there.tensor;
          cuda::merge_attention(own, own_lse, b.cuda(), b_lse.cuda());
          SCOPED_TRACE(sizes_of(a));
          EXPECT_LT(distance(own, reference), tolerance(own_type));
          EXPECT_TRUE(lse_there.fence_stands());
          const at::Tensor seen = own_lse.cpu().isfinite();
          EXPECT_TRUE(at::equal(seen, lse.isfinite()));
          EXPECT_LT(distance(at::where(seen, own_lse.cpu(), 0), at::where(seen, lse, 0.0)), 1e-6);
          if (empty) {
            EXPECT_EQ(own_lse.select(2, 2).max().item<float>(), kNone);
          }
        }
}

TEST_F(CudaFunctions, AddsRowsToTheOnesTheyBelongTo) {
  for_each_case([](at::ScalarType type, const Shape& shape, std::int64_t offset) {
    const std::int64_t words = 13;
    const at::Tensor gradient = random({words, shape.columns}, at::kFloat);
    const at::Tensor d_rows = random({shape.tokens, shape.columns}, type);
    at::Tensor rows = at::randint(words, {shape.tokens}, at::kLong);
    at::Tensor reference = wide(gradient).index_add_(0, rows, wide(d_rows));
    if (shape.tokens > 2) {  // rows that others have
      reference.index_add_(0, rows.slice(0, 0, 2), wide(d_rows.slice(0, 0, 2)), -1);
      rows[0] = -1;
      rows[1] = words;
    }
    Placed gradient_there(gradient, offset);
    const Placed d_rows_there(d_rows, offset);
    cuda::add_rows(gradient_there.tensor, rows.cuda(), d_rows_there.tensor);
    EXPECT_LT(distance(gradient_there.tensor, reference), 1e-5);
    EXPECT_TRUE(gradient_there.fence_stands());
  });
}

TEST_F(CudaFunctions, RefuseWhatTheyAreNotMadeFor) {
  at::Tensor x = at::randn({4, 8}).cuda(), loss = at::zeros({1}, x.options().dtype(at::kDouble));
  const at::Tensor weight = at::ones({8}).cuda();
  EXPECT_THROW(cuda::norm(x.cpu(), weight, {}, kEpsilon), InternalError);
  EXPECT_THROW(cuda::norm(x.t(), weight, {}, kEpsilon), InternalError);
  EXPECT_THROW(cuda::norm(x, weight.to(at::kHalf), {}, kEpsilon), InternalError);
  EXPECT_THROW(cuda::norm(x.to(at::kDouble), weight, {}, kEpsilon), InternalError);
  EXPECT_THROW(cuda::cross_entropy(x, at::zeros({3}, at::kLong).cuda(), 1, true, loss),
               InternalError);
  EXPECT_THROW(cuda::block_squares(x, {0, 5}, loss), InternalError);
  cuda::Update update;
  update.value = x;
  update.gradient = weight;
  EXPECT_THROW(cuda::update(update), InternalError);
}

}  // namespace
}  // namespace sluice
