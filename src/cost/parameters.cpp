#include "cost/parameters.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

namespace sluice {
namespace {

class List {
 public:
  explicit List(const ModelShape& shape) : shape_(shape) {}

  void add(std::string name, std::vector<std::int64_t> shape) {
    parameters_.push_back({std::move(name), std::move(shape)});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {shape_.dim});
    if (shape_.has_biases()) add(name + ".bias", {shape_.dim});
  }
  void add_linear(const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in});
    if (shape_.has_biases()) add(name + ".bias", {out});
  }
  std::vector<ParameterShape> take() { return std::move(parameters_); }

 private:
  const ModelShape& shape_;
  std::vector<ParameterShape> parameters_;
};

}  // namespace

std::int64_t ParameterShape::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<ParameterShape> stage_parameters(const ModelShape& s, const StageLayers& layers) {
  List list(s);
  if (layers.embedding) {
    list.add("embedding.weight", {s.vocab_size, s.dim});
    if (s.family != ModelFamily::llama) list.add("positions.weight", {s.positions, s.dim});
    if (s.encoder()) list.add_norm("embedding_norm");
  }
  for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    list.add_norm(prefix + "attention_norm");
    list.add_linear(prefix + "attention.qkv", s.qkv_dim(), s.dim);
    list.add_linear(prefix + "attention.out", s.dim, s.dim);
    list.add_norm(prefix + "mlp_norm");
    list.add_linear(prefix + "mlp.up", s.up_dim(), s.dim);
    list.add_linear(prefix + "mlp.down", s.dim, s.ffn_dim);
  }
  if (layers.head) {
    if (s.encoder()) list.add_linear("head.dense", s.dim, s.dim);
    list.add_norm("norm");
    list.add("head.weight", {s.vocab_size, s.dim});
    if (s.encoder()) list.add("head.bias", {s.vocab_size});
  }
  return list.take();
}

}  // namespace sluice
