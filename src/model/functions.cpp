#include "model/functions.h"

namespace sluice {

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return b.defined() ? at::addmm(b, x, w.t()) : at::mm(x, w.t());
}

at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& w) { return at::mm(dy, w); }

void linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, at::Tensor& dw, at::Tensor& db) {
  if (dy.scalar_type() == at::kFloat)
    dw.addmm_(dy.t(), x);
  else
    dw.addmm_(dy.to(at::kFloat).t(), x.to(at::kFloat));
  if (db.defined()) db.add_(dy.sum(0, false, at::kFloat));
}

at::Tensor norm(const Norm& norm, const at::Tensor& x, NormStatistics& statistics) {
  if (norm.family == ModelFamily::gpt2) {
    auto [y, mean, rstd] =
        at::native_layer_norm(x, {x.size(-1)}, norm.weight, norm.bias, norm.epsilon);
    statistics = {mean.to(at::kFloat), rstd.to(at::kFloat)};
    return y;
  }
  const at::Tensor wide = x.to(at::kFloat);
  statistics.rstd = wide.square().mean(-1, true).add_(norm.epsilon).rsqrt_();
  return (wide * statistics.rstd).to(x.scalar_type()).mul_(norm.weight);
}

NormGradients norm_backward(const Norm& norm, const at::Tensor& dy, const at::Tensor& x,
                            const NormStatistics& statistics) {
  if (norm.family == ModelFamily::gpt2) {
    auto [dx, dw, db] = at::native_layer_norm_backward(
        dy, x, {x.size(-1)}, statistics.mean.to(x.scalar_type()),
        statistics.rstd.to(x.scalar_type()), norm.weight, norm.bias, {true, true, true});
    return {dx, dw.to(at::kFloat), db.to(at::kFloat)};
  }
  const at::Tensor normal = x.to(at::kFloat) * statistics.rstd;  // (T, dim)
  const at::Tensor wide = dy.to(at::kFloat);
  const at::Tensor scaled = wide * norm.weight;
  const at::Tensor along = (scaled * normal).mean(-1, true);
  return {((scaled - normal * along) * statistics.rstd).to(x.scalar_type()), (wide * normal).sum(0),
          at::Tensor()};
}

at::Tensor activation(ModelFamily family, const at::Tensor& u) {
  if (family == ModelFamily::gpt2) return at::gelu(u, "tanh");
  const auto halves = u.chunk(2, -1);
  return at::silu(halves[0]).mul_(halves[1]);
}

at::Tensor activation_backward(ModelFamily family, const at::Tensor& da, const at::Tensor& u) {
  if (family == ModelFamily::gpt2) return at::gelu_backward(da, u, "tanh");
  const auto halves = u.chunk(2, -1);
  return at::cat({at::silu_backward(da * halves[1], halves[0]), da * at::silu(halves[0])}, -1);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, bool inverse) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor frequency =
      at::pow(theta, at::arange(half, at::kFloat).mul_(-1.0 / static_cast<double>(half)));
  const at::Tensor angle =
      (positions.to(at::kFloat).unsqueeze(-1) * frequency).unsqueeze(1);  // (B, 1, n, half)
  const at::Tensor cosine = angle.cos().to(x.scalar_type());
  const at::Tensor sine =
      inverse ? angle.sin().neg_().to(x.scalar_type()) : angle.sin().to(x.scalar_type());
  const at::Tensor low = x.slice(-1, 0, half), high = x.slice(-1, half);
  return at::cat({low * cosine - high * sine, high * cosine + low * sine}, -1);
}

}  // namespace sluice
