#include "cuda/eager.h"

#include <fmt/format.h>

#include "sluice/model/functions.h"

namespace sluice::test {
namespace {

class Model {
 public:
  Model(const ModelShape& shape, const std::map<std::string, at::Tensor>& weights)
      : shape_(shape), bert_(shape.encoder()), llama_(shape.family == ModelFamily::llama) {
    for (const auto& [name, value] : weights)
      weights_[name] = value.detach().clone().set_requires_grad(true);
  }

  at::Tensor loss(const Microbatch& batch) {
    const std::int64_t length = batch.tokens.size(1);
    at::Tensor x = at::embedding(weights_.at("embedding.weight"), batch.tokens);
    if (!llama_) x = x + weights_.at("positions.weight").slice(0, 0, length);
    if (bert_) x = norm(x, "embedding_norm");
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
      x = block(x, fmt::format("layers.{}.", layer));
    if (bert_) x = at::gelu(linear(x, "head.dense"));
    const at::Tensor logits = at::linear(norm(x, "norm"), weights_.at("head.weight"),
                                         bert_ ? weights_.at("head.bias") : at::Tensor());
    return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), batch.targets.flatten(), {},
                                  at::Reduction::Sum, -1);
  }

  std::map<std::string, at::Tensor> gradients() {
    std::map<std::string, at::Tensor> out;
    for (auto& [name, value] : weights_)
      out[name] = value.grad();
    return out;
  }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    const at::Tensor weight = weights_.at(name + ".weight");
    if (llama_) return at::rms_norm(x, {shape_.dim}, weight, shape_.norm_epsilon);
    return at::layer_norm(x, {shape_.dim}, weight, weights_.at(name + ".bias"),
                          shape_.norm_epsilon);
  }

  at::Tensor linear(const at::Tensor& x, const std::string& name) {
    return at::linear(x, weights_.at(name + ".weight"),
                      llama_ ? at::Tensor() : weights_.at(name + ".bias"));
  }

  at::Tensor heads(const at::Tensor& x, std::int64_t count) {
    return x.unflatten(-1, {count, shape_.head_dim()}).transpose(1, 2);
  }

  at::Tensor turned(const at::Tensor& x) {
    TensorKind kind = x.scalar_type();
    const at::Tensor positions = at::arange(x.size(2), at::kLong).unsqueeze(0);
    const Rotation angles = rotation(positions.to(x.device()), shape_, kind);
    const auto halves = x.chunk(2, -1);
    return at::cat({halves[0] * angles.cosine - halves[1] * angles.sine,
                    halves[1] * angles.cosine + halves[0] * angles.sine},
                   -1);
  }

  at::Tensor block(const at::Tensor& x, const std::string& at_layer) {
    const at::Tensor in = bert_ ? x : norm(x, at_layer + "attention_norm");
    at::Tensor q = heads(linear(in, at_layer + "attention.q"), shape_.heads);
    at::Tensor k = heads(linear(in, at_layer + "attention.k"), shape_.kv_heads);
    const at::Tensor v = heads(linear(in, at_layer + "attention.v"), shape_.kv_heads);
    if (llama_) {
      q = turned(q);
      k = turned(k);
    }
    const at::Tensor o = at::scaled_dot_product_attention(q, k, v, {}, 0.0, !bert_, std::nullopt,
                                                          shape_.heads != shape_.kv_heads)
                             .transpose(1, 2)
                             .flatten(2);
    const at::Tensor sum = x + linear(o, at_layer + "attention.out");
    const at::Tensor n = norm(sum, at_layer + (bert_ ? "attention_norm" : "mlp_norm"));
    at::Tensor a = linear(n, at_layer + "mlp.up");
    if (llama_)
      a = at::silu(linear(n, at_layer + "mlp.gate")) * a;
    else
      a = at::gelu(a, bert_ ? "none" : "tanh");
    const at::Tensor y = (bert_ ? n : sum) + linear(a, at_layer + "mlp.down");
    return bert_ ? norm(y, at_layer + "mlp_norm") : y;
  }

  ModelShape shape_;
  bool bert_, llama_;
  std::map<std::string, at::Tensor> weights_;
};

}  // namespace

std::map<std::string, at::Tensor> eager_gradients(const ModelShape& shape,
                                                  const std::map<std::string, at::Tensor>& weights,
                                                  const Microbatch& batch, double scale) {
  Model model(shape, weights);
  (model.loss(batch) * scale).backward();
  return model.gradients();
}

}  // namespace sluice::test
