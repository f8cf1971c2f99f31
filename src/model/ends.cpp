#include "model/ends.h"

#include "base/error.h"
#include "cost/stash.h"

namespace sluice {
namespace {

constexpr double kDeviation = 0.02;
constexpr std::int64_t kChunkTokens = 256;  // logits held at a time

// d loss / d logits of a chunk: softmax minus the target, zero where there is no loss.
at::Tensor logits_gradient(const at::Tensor& logits, const at::Tensor& lse,
                           const at::Tensor& targets, double scale) {
  at::Tensor gradient = (logits - lse.unsqueeze(1)).exp_();
  const at::Tensor counted = targets.ge(0);
  gradient.scatter_add_(1, targets.clamp_min(0).unsqueeze(1),
                        at::full({targets.size(0), 1}, -1.0, gradient.options()));
  return gradient.mul_(counted.unsqueeze(1)).mul_(scale);
}

}  // namespace

std::int64_t Embedding::Stash::bytes() const {
  return held_bytes(tokens) + held_bytes(d_y) + held_bytes(norm.weight) + held_bytes(norm.bias);
}

Embedding::Embedding(const ModelShape& shape, std::uint64_t seed, at::ScalarType dtype)
    : shape_(shape) {
  table_ = at::empty({shape.vocab_size, shape.dim}, dtype);
  d_table_ = at::zeros({shape.vocab_size, shape.dim}, at::kFloat);
  initialise_normal(table_, seed, "embedding.weight", kDeviation);
  parameters_.push_back({"embedding.weight", table_, d_table_, true});
  if (shape.family == ModelFamily::llama) return;
  positions_ = at::empty({shape.positions, shape.dim}, dtype);
  d_positions_ = at::zeros({shape.positions, shape.dim}, at::kFloat);
  initialise_normal(positions_, seed, "positions.weight",
                    shape.encoder() ? kDeviation : kDeviation / 2);
  parameters_.push_back({"positions.weight", positions_, d_positions_, true});
  if (shape.encoder()) norm_ = make_norm(shape, dtype, "embedding_norm", parameters_);
}

at::Tensor Embedding::sum(const at::Tensor& tokens, const SliceContext& context) const {
  at::Tensor sum = table_.index_select(0, tokens);
  if (positions_.defined()) sum.add_(positions_.index_select(0, context.positions.reshape({-1})));
  return sum;
}

at::Tensor Embedding::forward(const at::Tensor& tokens, Stash& stash,
                              const SliceContext& context) const {
  stash.tokens = tokens.reshape({-1}).contiguous();
  at::Tensor y = sum(stash.tokens, context);
  if (shape_.encoder()) {
    NormStatistics statistics;
    y = norm(norm_, y, statistics);
  }
  const std::int64_t expected = embedding_stash(stash_query(shape_, context, y)).after_f;
  SLUICE_CHECK(stash.bytes() == expected, "the embedding keeps {} bytes after F, predicted {}",
               stash.bytes(), expected);
  return y;
}

void Embedding::input_grad(const at::Tensor& dy, Stash& stash, const SliceContext& context) const {
  stash.d_y = dy;
  if (shape_.encoder()) {
    const at::Tensor x = sum(stash.tokens, context);
    NormStatistics statistics;
    norm(norm_, x, statistics);
    stash.norm = norm_backward(norm_, dy, x, statistics);
    stash.d_y = std::move(stash.norm.input);
    stash.norm.input = at::Tensor();
  }
  const std::int64_t expected = embedding_stash(stash_query(shape_, context, dy)).after_i;
  SLUICE_CHECK(stash.bytes() == expected, "the embedding keeps {} bytes after I, predicted {}",
               stash.bytes(), expected);
}

void Embedding::weight_grad(Stash& stash, const SliceContext& context) {
  const at::Tensor dy = stash.d_y.to(at::kFloat);
  d_table_.index_add_(0, stash.tokens, dy);
  if (d_positions_.defined()) d_positions_.index_add_(0, context.positions.reshape({-1}), dy);
  if (shape_.encoder()) norm_weight_grad(stash.norm, norm_);
  stash = Stash();
}

std::int64_t Head::Stash::bytes() const {
  return held_bytes(n) + held_bytes(lse) + held_bytes(targets) + held_bytes(d_x) +
         held_bytes(norm.weight) + held_bytes(norm.bias) + held_bytes(x) + held_bytes(d_h);
}

Head::Head(const ModelShape& shape, std::uint64_t seed, at::ScalarType dtype) : shape_(shape) {
  if (shape.encoder())
    dense_ = make_linear(parameters_, {.name = "head.dense",
                                       .out = shape.dim,
                                       .in = shape.dim,
                                       .deviation = kDeviation,
                                       .seed = seed,
                                       .bias = true,
                                       .dtype = dtype});
  norm_ = make_norm(shape, dtype, "norm", parameters_);
  output_ = make_linear(parameters_, {.name = "head",
                                      .out = shape.vocab_size,
                                      .in = shape.dim,
                                      .deviation = kDeviation,
                                      .seed = seed,
                                      // Tied, it starts as, and stays, the embedding's table.
                                      .drawn_as = shape.tied_embeddings ? "embedding.weight" : "",
                                      .bias = shape.encoder(),
                                      .dtype = dtype});
  // A tied output projection starts as, and stays, the embedding's table.
  if (shape.tied_embeddings)
    initialise_normal(output_.weight, seed, "embedding.weight", kDeviation);
}

at::Tensor Head::project(const at::Tensor& n) const { return linear(n, output_).to(at::kFloat); }

at::Tensor Head::logits(const at::Tensor& x) const {
  NormStatistics statistics;
  const at::Tensor h = shape_.encoder() ? activation(shape_.family, linear(x, dense_)) : x;
  return linear(norm(norm_, h, statistics), output_);
}

double Head::forward(const at::Tensor& x, const at::Tensor& targets, double scale, Stash* stash,
                     const SliceContext& context) const {
  NormStatistics statistics;
  const at::Tensor h = shape_.encoder() ? linear(x, dense_) : at::Tensor();
  const at::Tensor before_norm = shape_.encoder() ? activation(shape_.family, h) : x;
  const at::Tensor n = norm(norm_, before_norm, statistics);
  const at::Tensor flat = targets.reshape({-1}).contiguous();
  const at::Tensor lse = at::empty({n.size(0)}, at::kFloat);
  const at::Tensor dn = stash ? at::empty_like(n) : at::Tensor();
  double loss = 0;
  for (std::int64_t begin = 0; begin < n.size(0); begin += kChunkTokens) {
    const std::int64_t end = std::min(begin + kChunkTokens, n.size(0));
    const at::Tensor logits = project(n.slice(0, begin, end));
    const at::Tensor wanted = flat.slice(0, begin, end);
    at::Tensor chunk_lse = lse.slice(0, begin, end);
    chunk_lse.copy_(at::logsumexp(logits, 1));
    const at::Tensor chosen = logits.gather(1, wanted.clamp_min(0).unsqueeze(1)).squeeze(1);
    loss += (chunk_lse - chosen).mul_(wanted.ge(0)).to(at::kDouble).sum().item<double>();
    if (stash)
      dn.slice(0, begin, end)
          .copy_(at::mm(logits_gradient(logits, chunk_lse, wanted, scale).to(n.scalar_type()),
                        output_.weight));
  }
  if (stash) {
    stash->n = n;
    stash->lse = lse;
    stash->targets = flat;
    stash->scale = scale;
    stash->norm = norm_backward(norm_, dn, before_norm, statistics);
    stash->d_x = std::move(stash->norm.input);
    stash->norm.input = at::Tensor();
    if (shape_.encoder()) {
      stash->x = x;
      stash->d_h = activation_backward(shape_.family, stash->d_x, h);
      stash->d_x = linear_input_grad(stash->d_h, dense_.weight);
    }
    const std::int64_t expected = head_stash(stash_query(shape_, context, x)).after_f;
    SLUICE_CHECK(stash->bytes() == expected, "the head keeps {} bytes after F, predicted {}",
                 stash->bytes(), expected);
  }
  return loss * scale;
}

at::Tensor Head::input_grad(Stash& stash) const {
  at::Tensor dx = std::move(stash.d_x);
  stash.d_x = at::Tensor();
  return dx;
}

void Head::weight_grad(Stash& stash) {
  for (std::int64_t begin = 0; begin < stash.n.size(0); begin += kChunkTokens) {
    const std::int64_t end = std::min(begin + kChunkTokens, stash.n.size(0));
    const at::Tensor n = stash.n.slice(0, begin, end);
    const at::Tensor logits = project(n);
    const at::Tensor gradient = logits_gradient(logits, stash.lse.slice(0, begin, end),
                                                stash.targets.slice(0, begin, end), stash.scale);
    output_.d_weight.addmm_(gradient.t(), n.to(at::kFloat));
    if (output_.d_bias.defined()) output_.d_bias.add_(gradient.sum(0));
  }
  norm_weight_grad(stash.norm, norm_);
  if (shape_.encoder()) linear_weight_grad(stash.d_h, stash.x, dense_);
  stash = Stash();
}

}  // namespace sluice
