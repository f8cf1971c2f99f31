#include "sluice/model/ends.h"

#include "sluice/base/error.h"
#include "sluice/cuda/functions.h"
#include "sluice/run/stash.h"
#include "sluice/run/workspace.h"

namespace sluice {
namespace {

constexpr double kDeviation = 0.02;

// d loss / d logits of a chunk: softmax minus the target, zero where there is no loss. `own` are
// the targets as indices into these logits, -1 for words of other ranks.
at::Tensor logits_gradient(const at::Tensor& logits, const at::Tensor& lse,
                           const at::Tensor& targets, const at::Tensor& own, double scale) {
  at::Tensor gradient = (logits - lse.unsqueeze(1)).exp_();
  gradient.scatter_add_(1, own.clamp_min(0).unsqueeze(1),
                        own.ge(0).to(gradient.scalar_type()).neg_().unsqueeze(1));
  return gradient.mul_(targets.ge(0).unsqueeze(1)).mul_(scale);
}

// gradient[rows[n]] += d_rows[n], which are fp32 on the CPU. What goes to the same row is summed
// first, so that a microbatch adds one number to each element, as everywhere else. Then the result
// has the same bits, whoever adds up the microbatches. A GPU does this only for narrow gradients,
// and for those `shared` by tensor ranks, which each compute the gradient and have to stay equal.
void add_rows(at::Tensor& gradient, const at::Tensor& rows, const at::Tensor& d_rows,
              bool shared = false) {
  if (gradient.is_cuda() && gradient.scalar_type() == at::kFloat && !shared)
    return cuda::add_rows(gradient, rows, d_rows);
  if (gradient
          .is_cuda()) {  // what one row is given is added up, in one order, before it is rounded
    gradient.add_(at::embedding_dense_backward(d_rows.to(gradient.scalar_type()), rows,
                                               gradient.size(0), -1, false));
    return;
  }
  const auto [distinct, places, counts] = at::_unique2(rows, true, true);
  at::Tensor sums = at::zeros({distinct.size(0), gradient.size(1)}, d_rows.options())
                        .index_add_(0, places, d_rows);
  if (gradient.scalar_type() == at::kFloat)
    gradient.index_add_(0, distinct, sums);
  else
    gradient.index_copy_(0, distinct,
                         sums.add_(gradient.index_select(0, distinct)).to(gradient.scalar_type()));
}

}  // namespace

Embedding::Embedding(const ModelShape& shape, std::uint64_t seed, const TensorKind& kind,
                     const TensorParallel& tensor)
    : shape_(shape), tensor_(tensor) {
  const Shard words = tensor.rows("embedding", shape.vocab_size, shape.dim, false).shard;
  words_ = words.range;
  table_ = at::empty(words.shape(), kind.values());
  d_table_ = kind.gradient(words.shape());
  if (kind.trained) initialise_normal(table_, words, seed, "embedding.weight", kDeviation);
  parameters_.push_back({"embedding.weight", table_, d_table_, true, words});
  if (shape.family == ModelFamily::llama) return;
  const Shard places = tensor.shared({shape.positions, shape.dim}, true);
  positions_ = at::empty(places.shape(), kind.values());
  d_positions_ = kind.gradient(places.shape());
  if (kind.trained)
    initialise_normal(positions_, places, seed, "positions.weight",
                      shape.encoder() ? kDeviation : kDeviation / 2);
  parameters_.push_back({"positions.weight", positions_, d_positions_, true, places});
  if (shape.encoder())
    norm_ = make_norm(shape, kind, "embedding_norm", tensor.shared({shape.dim}, true), parameters_);
}

// Rows of zeros for words of other ranks.
at::Tensor Embedding::lookup(const at::Tensor& tokens) const {
  if (tensor_.size() == 1) return table_.index_select(0, tokens);
  const at::Tensor here = tokens.ge(words_.begin).logical_and_(tokens.lt(words_.end));
  return table_.index_select(0, (tokens - words_.begin).mul_(here)).mul_(here.unsqueeze(1));
}

at::Tensor Embedding::sum(const at::Tensor& tokens, const SliceContext& context) const {
  at::Tensor sum = tensor_.sum(lookup(tokens), TrafficClass::embedding, "embedding");
  if (!positions_.defined()) return sum;
  const RowRange own = tensor_.own_tokens(tokens.size(0));
  return sum.add_(
      positions_.index_select(0, context.positions.reshape({-1}).slice(0, own.begin, own.end)));
}

at::Tensor Embedding::forward(const at::Tensor& tokens, const SliceContext& context) const {
  const at::Tensor y = sum(tokens.flatten(), context);
  NormStatistics unused;
  return shape_.encoder() ? norm(norm_, y, unused) : y;
}

void Embedding::backward(const at::Tensor& dy, const at::Tensor& tokens,
                         const SliceContext& context) {
  const at::Tensor flat = tokens.flatten();
  at::Tensor d_sum = dy;
  if (shape_.encoder()) {
    const at::Tensor x = sum(flat, context);
    NormStatistics statistics;
    norm(norm_, x, statistics);
    const NormGradients gradients = norm_backward(norm_, dy, x, statistics);
    d_sum = gradients.input;
    norm_weight_grad(gradients, norm_);
  }
  d_sum = tensor_.gather(d_sum, flat.size(0), TrafficClass::embedding, "embedding");
  if (!d_sum.is_cuda()) d_sum = d_sum.to(at::kFloat);
  if (tensor_.size() == 1) {
    add_rows(d_table_, flat, d_sum);
  } else {
    const at::Tensor here =
        flat.ge(words_.begin).logical_and_(flat.lt(words_.end)).nonzero().squeeze(1);
    add_rows(d_table_, flat.index_select(0, here).sub_(words_.begin), d_sum.index_select(0, here));
  }
  if (d_positions_.defined()) {
    const RowRange own = tensor_.own_tokens(flat.size(0));
    add_rows(d_positions_, context.positions.reshape({-1}).slice(0, own.begin, own.end),
             d_sum.slice(0, own.begin, own.end), tensor_.size() > 1);
  }
}

std::int64_t Head::Stash::bytes() const {
  return held_bytes(n) + held_bytes(lse) + held_bytes(norm.weight) + held_bytes(norm.bias) +
         held_bytes(x) + held_bytes(d_h);
}

Head::Head(const ModelShape& shape, std::uint64_t seed, const TensorKind& kind,
           const TensorParallel& tensor, bool weights_in_forward)
    : shape_(shape), tensor_(tensor), weights_in_forward_(weights_in_forward) {
  SLUICE_CHECK(!weights_in_forward || (kind.on_gpu() && tensor.size() == 1),
               "a head of {} tensor ranks that adds to its weights in F", tensor.size());
  if (shape.encoder())
    dense_ = make_linear(parameters_,
                         {.parts = {{"head.dense", tensor.shared({shape.dim, shape.dim}, true),
                                     tensor.shared({shape.dim}, true)}},
                          .deviation = kDeviation,
                          .seed = seed,
                          .kind = kind});
  norm_ = make_norm(shape, kind, "norm", tensor.shared({shape.dim}, true), parameters_);
  const LinearPart words = tensor.rows("head", shape.vocab_size, shape.dim, shape.encoder());
  words_ = words.shard.range;
  output_ = make_linear(parameters_, {.parts = {words},
                                      .deviation = kDeviation,
                                      .seed = seed,
                                      // If tied, it starts and stays equal to the embedding's.
                                      .drawn_as = shape.tied_embeddings ? "embedding.weight" : "",
                                      .kind = kind});
}

at::Tensor Head::project(const at::Tensor& n) const { return linear(n, output_).to(at::kFloat); }

at::Tensor Head::logits(const at::Tensor& x) const {
  NormStatistics statistics;
  const at::Tensor h = shape_.encoder() ? activation(shape_.family, linear(x, dense_)) : x;
  return linear(norm(norm_, h, statistics), output_);
}

at::Tensor Head::own_targets(const at::Tensor& targets) const {
  if (tensor_.size() == 1) return targets;
  const at::Tensor here = targets.ge(words_.begin).logical_and_(targets.lt(words_.end));
  return (targets - words_.begin).masked_fill_(here.logical_not_(), -1);
}

// On a GPU, whole chunks at once. The GPU also adds up the losses, so the host does not wait for
// them.
void Head::losses_and_weights(const at::Tensor& n, const at::Tensor& targets, double scale,
                              const at::Tensor& dn, LossSum& loss) {
  if (!loss.computing.defined()) loss.computing = at::zeros({1}, n.options().dtype(at::kDouble));
  loss.scale = scale;
  const std::int64_t tokens = head_chunk(words_.count(), true);
  for (std::int64_t begin = 0; begin < n.size(0); begin += tokens) {
    const std::int64_t end = std::min(begin + tokens, n.size(0));
    const at::Tensor part = n.slice(0, begin, end);
    at::Tensor logits = linear(part, output_);
    cuda::cross_entropy(logits, targets.slice(0, begin, end), scale, dn.defined(), loss.computing);
    if (!dn.defined()) continue;
    at::Tensor into = dn.slice(0, begin, end);
    linear_input_grad(logits, output_.weight, into);
    linear_weight_grad(logits, part, output_);
  }
}

void Head::losses(const at::Tensor& n, const at::Tensor& targets, double scale,
                  const at::Tensor& lse, const at::Tensor& dn, LossSum& loss) const {
  const std::int64_t tokens = head_chunk(words_.count(), false);
  double sum = 0;
  for (std::int64_t begin = 0; begin < n.size(0); begin += tokens) {
    const std::int64_t end = std::min(begin + tokens, n.size(0));
    const at::Tensor logits = project(n.slice(0, begin, end));
    const at::Tensor wanted = targets.slice(0, begin, end), own = own_targets(wanted);
    at::Tensor chunk_lse = lse.slice(0, begin, end);
    chunk_lse.copy_(at::logsumexp(logits, 1));
    at::Tensor chosen = logits.gather(1, own.clamp_min(0).unsqueeze(1)).squeeze(1);
    if (tensor_.size() > 1) {
      // For each token: the log-sum-exp over this rank's words, and the target's logit if it is
      // here.
      const at::Tensor parts =
          tensor_.stack(at::stack({chunk_lse, chosen.mul_(own.ge(0))}), TrafficClass::loss, "loss");
      chunk_lse.copy_(at::logsumexp(parts.select(1, 0), 0));
      chosen = parts.select(1, 1).sum(0);
    }
    sum += (chunk_lse - chosen).mul_(wanted.ge(0)).to(at::kDouble).sum().item<double>();
    if (dn.defined())
      dn.slice(0, begin, end)
          .copy_(at::mm(logits_gradient(logits, chunk_lse, wanted, own, scale).to(n.scalar_type()),
                        output_.weight));
  }
  loss.known += sum * scale;
}

at::Tensor Head::forward(const at::Tensor& x, const at::Tensor& targets, double scale, Stash* stash,
                         const SliceContext& context, LossSum& loss) {
  NormStatistics statistics;
  const at::Tensor h = shape_.encoder() ? linear(x, dense_) : at::Tensor();
  const at::Tensor before_norm = shape_.encoder() ? activation(shape_.family, h) : x;
  const at::Tensor own_n = norm(norm_, before_norm, statistics);
  const at::Tensor n = tensor_.gather(own_n, context.num_tokens(), TrafficClass::loss, "head");
  const at::Tensor flat = targets.flatten();
  const at::Tensor dn = stash ? at::empty_like(n) : at::Tensor();
  const bool at_once = weights_in_forward_;
  const at::Tensor lse =
      at_once ? at::Tensor() : at::empty({n.size(0)}, n.options().dtype(at::kFloat));
  if (at_once)
    losses_and_weights(n, flat, scale, dn, loss);
  else
    losses(n, flat, scale, lse, dn, loss);
  if (!stash) return {};
  if (!at_once) {
    stash->n = own_n;
    stash->lse = lse;
    stash->targets = targets;
    stash->scale = scale;
  }
  stash->norm =
      norm_backward(norm_, tensor_.sum(dn, TrafficClass::loss, "head"), before_norm, statistics);
  at::Tensor d_x = std::move(stash->norm.input);
  stash->norm.input = at::Tensor();
  if (at_once) {
    norm_weight_grad(stash->norm, norm_);
    stash->norm = {};
  }
  if (shape_.encoder()) {
    stash->x = x;
    stash->d_h = activation_backward(shape_.family, d_x, h);
    d_x = linear_input_grad(stash->d_h, dense_.weight);
  }
  const std::int64_t expected = head_stash(*context.plan, context.num_tokens()).after_f;
  SLUICE_CHECK(stash->bytes() == expected, "the head keeps {} bytes after F, predicted {}",
               stash->bytes(), expected);
  return d_x;
}

void Head::weight_grad(Stash& stash) {
  if (!weights_in_forward_) {
    output_weight_grad(stash);
    norm_weight_grad(stash.norm, norm_);
  }
  if (shape_.encoder()) linear_weight_grad(stash.d_h, stash.x, dense_);
  stash = Stash();
}

void Head::output_weight_grad(const Stash& stash) {
  const at::Tensor all_targets = stash.targets.flatten();
  const std::int64_t tokens = all_targets.size(0), step = head_chunk(words_.count(), false);
  const at::Tensor all = tensor_.gather(stash.n, tokens, TrafficClass::loss, "head");
  // A narrow gradient is rounded once, not after every chunk. An fp32 one is not copied.
  at::Tensor d_weight = output_.d_weight.to(at::kFloat);
  at::Tensor d_bias = shape_.encoder() ? output_.d_bias.to(at::kFloat) : at::Tensor();
  for (std::int64_t begin = 0; begin < tokens; begin += step) {
    const std::int64_t end = std::min(begin + step, tokens);
    const at::Tensor n = all.slice(0, begin, end);
    const at::Tensor logits = project(n);
    const at::Tensor targets = all_targets.slice(0, begin, end);
    const at::Tensor gradient = logits_gradient(logits, stash.lse.slice(0, begin, end), targets,
                                                own_targets(targets), stash.scale);
    d_weight.addmm_(gradient.t(), n.to(at::kFloat));
    if (d_bias.defined()) d_bias.add_(gradient.sum(0));
  }
  output_.d_weight.copy_(d_weight);
  if (d_bias.defined()) output_.d_bias.copy_(d_bias);
}

}  // namespace sluice
