#include "sluice/cost/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace sluice {
namespace {

class List {
 public:
  explicit List(const ModelShape& shape) : shape_(shape) {}

  void add(std::string name, std::vector<std::int64_t> shape, int divided = -1,
           std::int64_t least_rows = 1) {
    parameters_.push_back({std::move(name), std::move(shape), divided, least_rows});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {shape_.dim});
    if (shape_.has_biases()) add(name + ".bias", {shape_.dim});
  }
  void add_linear(const std::string& name, std::int64_t out, std::int64_t in, int divided,
                  std::int64_t least_rows = 1) {
    add(name + ".weight", {out, in}, divided, least_rows);
    if (shape_.has_biases()) add(name + ".bias", {out}, divided == 0 ? 0 : -1, least_rows);
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

std::int64_t ParameterShape::count(std::int64_t tensor) const {
  if (divided < 0) return count();
  const std::int64_t along = shape[static_cast<std::size_t>(divided)];
  return count() / along * std::max(along / tensor, divided == 0 ? least_rows : 1);
}

std::int64_t ParameterShape::shard_count(std::int64_t tensor, std::int64_t data) const {
  const std::int64_t held = rows(tensor);
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < data; ++i) {
    const BlockRows share = share_rows(held, i, data);
    most = std::max(most, share.end - share.begin);
  }
  return count(tensor) / held * most;
}

std::int64_t ParameterShape::rows(std::int64_t tensor) const {
  return divided == 0 ? std::max(shape[0] / tensor, least_rows) : shape[0];
}

std::vector<ParameterShape> stage_parameters(const ModelShape& s, const StageLayers& layers) {
  List list(s);
  if (layers.embedding) {
    list.add("embedding.weight", {s.vocab_size, s.dim}, 0);
    if (s.family != ModelFamily::llama) list.add("positions.weight", {s.positions, s.dim});
    if (s.encoder()) list.add_norm("embedding_norm");
  }
  for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    list.add_norm(prefix + "attention_norm");
    list.add_linear(prefix + "attention.q", s.dim, s.dim, 0);
    list.add_linear(prefix + "attention.k", s.kv_dim(), s.dim, 0, s.head_dim());
    list.add_linear(prefix + "attention.v", s.kv_dim(), s.dim, 0, s.head_dim());
    list.add_linear(prefix + "attention.out", s.dim, s.dim, 1);
    list.add_norm(prefix + "mlp_norm");
    if (s.family == ModelFamily::llama) list.add_linear(prefix + "mlp.gate", s.ffn_dim, s.dim, 0);
    list.add_linear(prefix + "mlp.up", s.ffn_dim, s.dim, 0);
    list.add_linear(prefix + "mlp.down", s.dim, s.ffn_dim, 1);
  }
  if (layers.head) {
    if (s.encoder()) list.add_linear("head.dense", s.dim, s.dim, -1);
    list.add_norm("norm");
    list.add("head.weight", {s.vocab_size, s.dim}, 0);
    if (s.encoder()) list.add("head.bias", {s.vocab_size}, 0);
  }
  return list.take();
}

std::int64_t num_parameters(const ModelShape& shape) {
  std::int64_t count = 0;
  for (const ParameterShape& parameter : stage_parameters(shape, {0, shape.layers, true, true}))
    if (!shape.tied_embeddings || parameter.name != "head.weight") count += parameter.count();
  return count;
}

}  // namespace sluice
