#include "sluice/model/functions.h"

#include <numbers>

#include "sluice/cuda/functions.h"
#include "sluice/cuda/products.h"
#include "sluice/model/rms_norm.h"

namespace sluice {
namespace {

// ATen's layer norm on the CPU gives statistics and weight gradients in the type of the weights:
// bf16 ones would lose digits that fp32 ones keep. (On a GPU they are fp32 always.)
at::Tensor norm_scale(const at::Tensor& weight) {
  return weight.is_cpu() ? weight.to(at::kFloat) : weight;
}

cuda::Activation on_gpu(ModelFamily family) {
  if (family == ModelFamily::llama) return cuda::Activation::swiglu;
  return family == ModelFamily::bert ? cuda::Activation::gelu_erf : cuda::Activation::gelu_tanh;
}

const char* gelu_kind(ModelFamily family) { return family == ModelFamily::bert ? "none" : "tanh"; }

}  // namespace

Linear make_linear(std::vector<Parameter>& parameters, const LinearOptions& options) {
  std::int64_t rows = 0;
  for (const LinearPart& part : options.parts)
    rows += part.shard.shape()[0];
  const std::int64_t columns = options.parts[0].shard.shape()[1];
  Linear linear;
  linear.trained = options.kind.trained;
  linear.weight = at::empty({rows, columns}, options.kind.values());
  linear.d_weight = options.kind.gradient({rows, columns});
  if (!options.parts[0].bias.whole.empty()) {
    linear.bias = at::zeros({rows}, options.kind.values());
    linear.d_bias = options.kind.gradient({rows});
  }
  std::int64_t begin = 0;
  for (const LinearPart& part : options.parts) {
    const std::int64_t end = begin + part.shard.shape()[0];
    const std::string name = part.name + ".weight";
    at::Tensor weight = linear.weight.slice(0, begin, end);
    if (options.kind.trained)
      initialise_normal(weight, part.shard, options.seed,
                        options.drawn_as.empty() ? name : options.drawn_as, options.deviation);
    parameters.push_back({name, weight, linear.d_weight.slice(0, begin, end), true, part.shard});
    if (linear.bias.defined())
      parameters.push_back({part.name + ".bias", linear.bias.slice(0, begin, end),
                            linear.d_bias.slice(0, begin, end), false, part.bias});
    begin = end;
  }
  return linear;
}

at::Tensor linear(const at::Tensor& x, const Linear& linear) {
  const at::Tensor bias = linear.adds_bias ? linear.bias : at::Tensor();
  if (x.is_cuda() && linear.trained) return cuda::product(x, linear.weight.t(), bias);
  return bias.defined() ? at::addmm(bias, x, linear.weight.t()) : at::mm(x, linear.weight.t());
}

at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& w) {
  return dy.is_cuda() ? cuda::product(dy, w) : at::mm(dy, w);
}

void linear_input_grad(const at::Tensor& dy, const at::Tensor& w, at::Tensor& dx) {
  if (dy.is_cuda())
    cuda::product_into(dx, dy, w);
  else
    at::mm_out(dx, dy, w);
}

void linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, Linear& linear) {
  at::Tensor& d_weight = linear.d_weight;
  if (dy.is_cuda())
    cuda::add_product(d_weight, dy.t(), x);
  else
    // If the gradient is fp32 already, this makes no copy.
    d_weight.copy_(d_weight.to(at::kFloat).addmm_(dy.to(at::kFloat).t(), x.to(at::kFloat)));
  if (linear.d_bias.defined()) linear.d_bias.add_(dy.sum(0, false, at::kFloat));
}

Norm make_norm(const ModelShape& shape, const TensorKind& kind, const std::string& name,
               const Shard& shard, std::vector<Parameter>& parameters) {
  Norm norm;
  norm.epsilon = shape.norm_epsilon;
  norm.weight = at::ones({shape.dim}, kind.values());
  norm.d_weight = kind.gradient({shape.dim});
  parameters.push_back({name + ".weight", norm.weight, norm.d_weight, false, shard});
  if (shape.has_biases()) {
    norm.bias = at::zeros({shape.dim}, kind.values());
    norm.d_bias = kind.gradient({shape.dim});
    parameters.push_back({name + ".bias", norm.bias, norm.d_bias, false, shard});
  }
  return norm;
}

at::Tensor norm(const Norm& norm, const at::Tensor& x, NormStatistics& statistics) {
  if (x.is_cuda()) {
    cuda::NormResult result = cuda::norm(x, norm.weight, norm.bias, norm.epsilon);
    statistics = {result.mean, result.rstd};
    return result.y;
  }
  if (norm.bias.defined()) {
    auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, norm_scale(norm.weight),
                                                 norm_scale(norm.bias), norm.epsilon);
    statistics = {mean, rstd};
    return y;
  }
  if (x.scalar_type() == at::kFloat && x.is_cpu())
    return rms_norm(x, norm.weight, norm.epsilon, statistics.rstd);
  const at::Tensor wide = x.to(at::kFloat);
  statistics.rstd = wide.square().mean(-1, true).add_(norm.epsilon).rsqrt_();
  return (wide * statistics.rstd).to(x.scalar_type()).mul_(norm.weight);
}

at::Tensor add_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& addend,
                    at::Tensor& sum, NormStatistics& statistics) {
  if (!x.is_cuda()) {
    sum = x + addend;
    return sluice::norm(norm, sum, statistics);
  }
  cuda::NormResult result = cuda::add_norm(x, addend, norm.weight, norm.bias, norm.epsilon, sum);
  statistics = {result.mean, result.rstd};
  return result.y;
}

NormGradients norm_backward(const Norm& norm, const at::Tensor& dy, const at::Tensor& x,
                            const NormStatistics& statistics, const at::Tensor& addend) {
  if (x.is_cuda()) {
    const cuda::NormGradient gradient =
        cuda::norm_backward(dy, x, norm.weight, statistics.mean, statistics.rstd, addend);
    return {gradient.dx, gradient.d_weight, gradient.d_bias};
  }
  if (addend.defined()) {
    NormGradients gradients = norm_backward(norm, dy, x, statistics);
    gradients.input = addend + gradients.input;
    return gradients;
  }
  if (norm.bias.defined()) {
    auto [dx, dw, db] = at::native_layer_norm_backward(dy, x, {x.size(-1)}, statistics.mean,
                                                       statistics.rstd, norm_scale(norm.weight),
                                                       norm_scale(norm.bias), {true, true, true});
    return {dx, dw.to(at::kFloat), db.to(at::kFloat)};
  }
  if (x.scalar_type() == at::kFloat && x.is_cpu()) {
    NormGradients out;
    out.weight = at::zeros_like(norm.weight);
    out.input = rms_norm_backward(dy, x, norm.weight, statistics.rstd, out.weight);
    return out;
  }
  const at::Tensor normal = x.to(at::kFloat) * statistics.rstd;  // (T, dim)
  const at::Tensor wide = dy.to(at::kFloat);
  const at::Tensor scaled = wide * norm.weight;
  const at::Tensor along = (scaled * normal).mean(-1, true);
  return {((scaled - normal * along) * statistics.rstd).to(x.scalar_type()), (wide * normal).sum(0),
          at::Tensor()};
}

void norm_weight_grad(const NormGradients& gradients, Norm& norm) {
  norm.d_weight.add_(gradients.weight);
  if (norm.d_bias.defined()) norm.d_bias.add_(gradients.bias);
}

at::Tensor activation(ModelFamily family, const at::Tensor& u) {
  if (u.is_cuda()) return cuda::activation(on_gpu(family), u);
  if (family != ModelFamily::llama) return at::gelu(u, gelu_kind(family));
  const auto halves = u.chunk(2, -1);
  return at::silu(halves[0]).mul_(halves[1]);
}

at::Tensor activation_backward(ModelFamily family, const at::Tensor& da, const at::Tensor& u) {
  if (u.is_cuda()) return cuda::activation_backward(on_gpu(family), da, u);
  if (family != ModelFamily::llama) return at::gelu_backward(da, u, gelu_kind(family));
  const auto halves = u.chunk(2, -1);
  at::Tensor out = at::empty(u.sizes(), u.options());
  const auto parts = out.chunk(2, -1);
  at::Tensor d_gate = parts[0], d_up = parts[1];
  at::silu_backward_out(d_gate, da * halves[1], halves[0]);
  at::silu_out(d_up, halves[0]).mul_(da);
  return out;
}

at::Tensor rotary_frequencies(const ModelShape& shape) {
  const std::int64_t dim = shape.head_dim();
  const at::Tensor plain =
      at::pow(shape.rope_theta, at::arange(0, dim, 2, at::kFloat).div_(dim)).reciprocal_();
  const RopeScaling& scaling = shape.rope_scaling;
  if (scaling.factor == 0) return plain;
  const auto positions = static_cast<double>(scaling.original_positions);
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const at::Tensor wavelength = plain.reciprocal().mul_(2 * std::numbers::pi);
  // How much of the frequency is kept: 0 at wavelength positions / low, 1 at positions / high.
  const at::Tensor kept = wavelength.reciprocal().mul_(positions).sub_(low).div_(high - low);
  const at::Tensor stretched = plain / scaling.factor;
  const at::Tensor between = (1 - kept) * plain / scaling.factor + kept * plain;
  return at::where(wavelength > positions / low, stretched,
                   at::where(wavelength < positions / high, plain, between));
}

Rotation rotation(const at::Tensor& positions, const ModelShape& shape, const TensorKind& kind) {
  const at::Tensor frequency = rotary_frequencies(shape).to(positions.device());
  const at::Tensor angle = (positions.to(at::kFloat).unsqueeze(-1) * frequency).unsqueeze(1);
  const at::ScalarType dtype = kind.on_gpu() ? at::kFloat : kind.dtype;
  return {angle.cos().to(dtype), angle.sin().to(dtype)};
}

at::Tensor rotate(const at::Tensor& x, const Rotation& rotation, bool inverse) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor low = x.slice(-1, 0, half), high = x.slice(-1, half);
  at::Tensor out = at::empty(x.sizes(), x.options());
  at::Tensor out_low = out.slice(-1, 0, half), out_high = out.slice(-1, half);
  at::mul_out(out_low, low, rotation.cosine);
  out_low.addcmul_(high, rotation.sine, inverse ? 1 : -1);
  at::mul_out(out_high, high, rotation.cosine);
  out_high.addcmul_(low, rotation.sine, inverse ? -1 : 1);
  return out;
}

}  // namespace sluice
