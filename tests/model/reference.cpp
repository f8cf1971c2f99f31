#include "model/reference.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace sluice::test {
namespace {

class Model {
 public:
  Model(const ModelShape& shape, const std::map<std::string, at::Tensor>& weights,
        const std::map<std::int64_t, ReferenceLayer>& own)
      : shape_(shape), own_(own) {
    for (const auto& [name, value] : weights)
      weights_[name] = value.detach().clone().set_requires_grad(true);
  }

  at::Tensor loss(const Microbatch& batch) {
    at::Tensor total = at::zeros({}, at::kDouble);
    for (std::int64_t s = 0; s < batch.tokens.size(0); ++s) {
      const std::int64_t length = batch.tokens.size(1);
      // Documents: which one each token is in, and its position there.
      at::Tensor document = at::zeros({length}, at::kLong);
      at::Tensor position = at::arange(length, at::kLong);
      if (!batch.documents.single())
        for (const std::int64_t start : batch.documents.starts[static_cast<std::size_t>(s)]) {
          document.slice(0, start).add_(1);
          position.slice(0, start).copy_(at::arange(length - start, at::kLong));
        }
      at::Tensor x = weight("embedding.weight").index_select(0, batch.tokens[s]);
      if (shape_.family != ModelFamily::llama)
        x = x + weight("positions.weight").index_select(0, position);
      if (bert()) x = norm(x, "embedding_norm");
      for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
        const auto own = own_.find(layer);
        x = own == own_.end() ? block(x, layer, document, position)
                              : own->second(x, [&](const std::string& name) {
                                  return weight(fmt::format("layers.{}.{}", layer, name));
                                });
      }
      if (bert()) x = gelu_erf(linear(x, "head.dense"));
      at::Tensor logits = at::mm(norm(x, "norm"), weight("head.weight").t());
      if (bert()) logits = logits + weight("head.bias");
      const at::Tensor logp = at::log_softmax(logits, 1);
      const at::Tensor targets = batch.targets[s];
      const at::Tensor chosen = logp.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
      total = total - (chosen * targets.ge(0)).to(at::kDouble).sum();
    }
    return total;
  }

  std::map<std::string, at::Tensor> gradients() {
    std::map<std::string, at::Tensor> out;
    for (auto& [name, value] : weights_)
      out[name] = value.grad().defined() ? value.grad() : at::zeros_like(value);
    return out;
  }

 private:
  at::Tensor weight(const std::string& name) { return weights_.at(name); }
  bool bert() const { return shape_.family == ModelFamily::bert; }

  at::Tensor gelu_erf(const at::Tensor& u) { return 0.5 * u * (1 + (u / std::sqrt(2.0)).erf()); }

  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    if (shape_.family != ModelFamily::llama) {
      const at::Tensor mean = x.mean(-1, true);
      const at::Tensor variance = (x - mean).square().mean(-1, true);
      return (x - mean) / (variance + (shape_.norm_epsilon)).sqrt() * weight(name + ".weight") +
             weight(name + ".bias");
    }
    return x / (x.square().mean(-1, true) + shape_.norm_epsilon).sqrt() * weight(name + ".weight");
  }

  at::Tensor linear(const at::Tensor& x, const std::string& name) {
    const at::Tensor y = at::mm(x, weight(name + ".weight").t());
    return shape_.family != ModelFamily::llama ? y + weight(name + ".bias") : y;
  }

  // Each pair (i, i + half) of a head turns by position x base^(-i / half).
  at::Tensor rotated(const at::Tensor& x, const at::Tensor& position) {
    const std::int64_t half = x.size(-1) / 2;
    std::vector<at::Tensor> low, high;
    for (std::int64_t i = 0; i < half; ++i) {
      const at::Tensor angle =
          position.to(at::kFloat) *
          std::pow(shape_.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
      const at::Tensor a = x.select(-1, i), b = x.select(-1, i + half);
      low.push_back(a * angle.cos() - b * angle.sin());
      high.push_back(b * angle.cos() + a * angle.sin());
    }
    low.insert(low.end(), high.begin(), high.end());
    return at::stack(low, -1);
  }

  at::Tensor block(const at::Tensor& x, std::int64_t layer, const at::Tensor& document,
                   const at::Tensor& position) {
    const std::string at_layer = fmt::format("layers.{}.", layer);
    const std::int64_t length = x.size(0), d = shape_.head_dim();
    const at::Tensor input = bert() ? x : norm(x, at_layer + "attention_norm");
    const at::Tensor queries = linear(input, at_layer + "attention.q");
    const at::Tensor keys = linear(input, at_layer + "attention.k");
    const at::Tensor values = linear(input, at_layer + "attention.v");
    at::Tensor seen = document.unsqueeze(1).eq(document.unsqueeze(0));
    if (!bert()) seen = seen * at::ones({length, length}, at::kBool).tril();
    std::vector<at::Tensor> heads;
    for (std::int64_t h = 0; h < shape_.heads; ++h) {
      const std::int64_t shared = h / (shape_.heads / shape_.kv_heads);
      at::Tensor q = queries.slice(1, h * d, (h + 1) * d);
      at::Tensor k = keys.slice(1, shared * d, (shared + 1) * d);
      const at::Tensor v = values.slice(1, shared * d, (shared + 1) * d);
      if (shape_.family == ModelFamily::llama) {
        q = rotated(q, position);
        k = rotated(k, position);
      }
      const at::Tensor scores =
          (at::mm(q, k.t()) / std::sqrt(static_cast<double>(d)))
              .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
      heads.push_back(at::mm(at::softmax(scores, 1), v));
    }
    const at::Tensor x2 = x + linear(at::cat(heads, 1), at_layer + "attention.out");
    if (bert()) {
      const at::Tensor x1 = norm(x2, at_layer + "attention_norm");
      const at::Tensor mlp =
          linear(gelu_erf(linear(x1, at_layer + "mlp.up")), at_layer + "mlp.down");
      return norm(x1 + mlp, at_layer + "mlp_norm");
    }
    const at::Tensor n = norm(x2, at_layer + "mlp_norm");
    const at::Tensor u = linear(n, at_layer + "mlp.up");
    at::Tensor a;
    if (shape_.family == ModelFamily::gpt2) {
      a = 0.5 * u * (1 + (std::sqrt(2 / M_PI) * (u + 0.044715 * u.pow(3))).tanh());
    } else {
      const at::Tensor gate = linear(n, at_layer + "mlp.gate");
      a = gate / (1 + (-gate).exp()) * u;
    }
    return x2 + linear(a, at_layer + "mlp.down");
  }

  ModelShape shape_;
  std::map<std::int64_t, ReferenceLayer> own_;
  std::map<std::string, at::Tensor> weights_;
};

}  // namespace

ReferenceResult reference_step(const ModelShape& shape,
                               const std::map<std::string, at::Tensor>& weights,
                               const std::vector<Microbatch>& microbatches, double scale,
                               const std::map<std::int64_t, ReferenceLayer>& own) {
  Model model(shape, weights, own);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (const Microbatch& batch : microbatches)
    loss = loss + model.loss(batch) * scale;
  loss.backward();
  return {loss.item<double>(), model.gradients()};
}

}  // namespace sluice::test
