#include "sluice/model/stage.h"

#include "sluice/base/error.h"

namespace sluice {

Stage::Stage(const RunPlan& plan, int number, const Machine& machine, const TensorParallel& tensor,
             const ShardRanks& shards)
    : plan_(plan),
      number_(number),
      kind_(tensor_kind(plan, machine.device)),
      tensor_(tensor),
      long_document_(machine.long_document) {
  const StageLayers layers = plan.layers_of(number);
  const auto seed = static_cast<std::uint64_t>(plan.config.debug.seed);
  // Sharded one by one, so that no more than one is ever whole.
  if (layers.embedding) {
    embedding_.emplace(plan.shape, seed, kind_, tensor);
    shard(embedding_->parameters(), shards, "the embedding");
  }
  for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
    layers_.push_back(machine.make_layer({plan.shape, layer, seed, kind_, tensor}));
    if (shards.ranks && !layers_.back()->shardable())
      throw user_error(
          "parallelism.sharding is parameters: layer {} is a module of your own, which keeps its "
          "weights from F to B; use states",
          layer);
    shard(layers_.back()->parameters(), shards, fmt::format("layer {}", layer));
  }
  if (layers.head) {
    head_.emplace(plan.shape, seed, kind_, tensor, plan.head_in_forward());
    shard(head_->parameters(), shards, "the head");
  }
}

void Stage::shard(std::vector<Parameter>& parameters, const ShardRanks& shards, std::string name) {
  if (shards.ranks)
    units_.push_back(std::make_unique<ShardedUnit>(parameters, shards, std::move(name)));
}

UnitWalk Stage::walk(OpKind kind) {
  return UnitWalk(units_, units_.empty() ? std::vector<UnitUse>() : unit_uses(plan_, number_, kind),
                  unsharded_);
}

void Stage::begin_gather(OpKind kind) {
  if (units_.empty()) return;
  const std::vector<UnitUse> uses = unit_uses(plan_, number_, kind);
  if (!uses.empty() && uses.front().weights) units_[uses.front().unit]->begin_gather();
}

void Stage::unshard() {
  unsharded_ = true;
  for (const auto& unit : units_)
    unit->begin_gather();
}

void Stage::reshard() {
  unsharded_ = false;
  for (const auto& unit : units_)
    unit->drop();
}

void Stage::begin_step(double loss_scale) {
  SLUICE_CHECK(states_.empty(), "{} microbatches of the last step are still open", states_.size());
  begin_window(0, loss_scale);
  use_window(0);
}

void Stage::begin_window(std::int64_t window, double loss_scale) {
  windows_[window] = {loss_scale, {}};
}

void Stage::end_window(std::int64_t window) {
  const auto found = windows_.find(window);
  if (window_ == &found->second) window_ = nullptr;
  windows_.erase(found);
}

void Stage::drop_microbatches() {
  states_.clear();
  stash_bytes_ = 0;
  working_.reset();
}

void Stage::cut_at(SliceBounds bounds) {
  if (bounds == bounds_) return;
  if (plan_.shape.encoder() && bounds.size() > 2)
    throw user_error(
        "sequences are cut into {} slices: bert attends in both directions, so an earlier slice "
        "would need a later one; use 1",
        bounds.size() - 1);
  rotations_.assign(bounds.size() - 1, {});
  positions_.assign(bounds.size() - 1, {});
  // Every row of unequal sequences has a length of its own; a document has at most the context's.
  long_lengths_ = long_lengths(plan_.shape, tensor_.size(), kind_.dtype,
                               plan_.ragged() ? plan_.slice_bounds() : bounds, long_document_);
  bounds_ = std::move(bounds);
}

SliceContext Stage::context_of(const Microbatch& data, std::size_t slice) {
  cut_at(data.slice_bounds());
  SliceContext context;
  context.num_sequences = data.tokens.size(0);
  context.slice = slice;
  context.bounds = bounds_;
  context.documents = data.documents;
  context.group = data.group;
  context.plan = &plan_;
  // Where this rank's part of the row begins.
  const std::int64_t first = data.group ? data.group->rank() * data.tokens.size(1) : 0;
  const bool rotates = plan_.shape.family == ModelFamily::llama;
  const bool single = data.documents.single();
  const auto make = [&](at::Tensor& positions, Rotation& rotated) {
    const std::int64_t sequences = single && rotates ? 1 : context.num_sequences;
    at::Tensor made =
        positions_of(sequences, first + bounds_[slice], first + bounds_[slice + 1], data.documents);
    // From pinned memory, so that the host does not wait for the GPU's current work.
    if (kind_.on_gpu()) made = made.pin_memory().to(kind_.device, true);
    if (rotates)
      rotated = rotation(made, plan_.shape, kind_);
    else
      positions = made;
  };
  if (single) {
    const at::Tensor& had = rotates ? rotations_[slice].cosine : positions_[slice];
    if (!had.defined() || (!rotates && had.size(0) != context.num_sequences))
      make(positions_[slice], rotations_[slice]);
    context.positions = positions_[slice];
    context.rotation = rotations_[slice];
  } else {
    make(context.positions, context.rotation);
    if (kind_.on_gpu() && kind_.dtype != at::kFloat)
      context.documents.packed = std::make_shared<PackedDocuments>(packed_documents(
          packed_calls(data.documents, context.row_bounds(), slice, long_lengths_), kind_.device));
  }
  return context;
}

// The bytes of one slice, plus those that its microbatch holds as a whole.
std::int64_t Stage::bytes_of(const State& state, std::size_t slice) const {
  std::int64_t bytes = 0;
  for (const auto& layer : state.layers)
    bytes += layer->bytes(slice);
  if (head_) bytes += state.head[slice].bytes();
  return bytes;
}

std::int64_t Stage::stash_bytes() const {
  if (!working_) return stash_bytes_;
  return stash_bytes_ + bytes_of(*working_->state, working_->slice) - working_->before;
}

void Stage::begin_op(const State& state, std::size_t slice) {
  working_ = Working{&state, slice, bytes_of(state, slice)};
}

void Stage::end_op() {
  stash_bytes_ = stash_bytes();
  working_.reset();
}

Stage::State& Stage::open(int microbatch, std::size_t slices) {
  State& state = states_[microbatch];
  if (!state.contexts.empty()) return state;
  for (const auto& layer : layers_)
    state.layers.push_back(layer->open(slices));
  state.tokens.resize(slices);
  state.head.resize(slices);
  state.contexts.resize(slices);
  state.slices_left = static_cast<int>(slices);
  return state;
}

at::Tensor Stage::forward(int microbatch, int slice, const Microbatch& data,
                          const at::Tensor& input) {
  UnitWalk units = walk(OpKind::F);
  if (data.tokens.numel() == 0) {
    units.pass();
    states_[microbatch].empty = true;
    return at::empty({0, plan_.shape.dim}, kind_.values());
  }
  const auto c = static_cast<std::size_t>(slice);
  SliceContext made = context_of(data, c);
  State& state = open(microbatch, made.num_slices());
  const SliceContext& context = state.contexts[c] = std::move(made);
  begin_op(state, c);
  at::Tensor x = input;
  if (embedding_) {
    units.next();
    state.tokens[c] = data.tokens.slice(1, bounds_[c], bounds_[c + 1]);
    x = embedding_->forward(state.tokens[c], context);
  }
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    units.next();
    x = layers_[n]->forward(x, *state.layers[n], context);
  }
  if (head_) {
    units.next();
    x = head_->forward(x, data.targets.slice(1, bounds_[c], bounds_[c + 1]), window_->loss_scale,
                       &state.head[c], context, window_->loss);
  }
  units.finish();
  end_op();
  return x;
}

at::Tensor Stage::input_grad(int microbatch, int slice, at::Tensor d_output) {
  const auto c = static_cast<std::size_t>(slice);
  State& state = states_.at(microbatch);
  UnitWalk units = walk(OpKind::I);
  if (state.empty) {
    units.pass();
    return embedding_ ? at::Tensor() : d_output;
  }
  const SliceContext& context = state.contexts[c];
  begin_op(state, c);
  at::Tensor dx = std::move(d_output);
  for (std::size_t n = layers_.size(); n-- > 0;) {
    units.next();
    dx = layers_[n]->input_grad(dx, *state.layers[n], context);
  }
  if (embedding_) {
    units.next();
    embedding_->backward(dx, state.tokens[c], context);
    dx = at::Tensor();
  }
  units.finish();
  end_op();
  return dx;
}

void Stage::weight_grad(int microbatch, int slice) {
  const auto c = static_cast<std::size_t>(slice);
  State& state = states_.at(microbatch);
  UnitWalk units = walk(OpKind::W);
  if (state.empty) {
    units.pass();
    states_.erase(microbatch);
    return;
  }
  const SliceContext& context = state.contexts[c];
  begin_op(state, c);
  if (head_) {
    units.next();
    head_->weight_grad(state.head[c]);
  }
  for (std::size_t n = layers_.size(); n-- > 0;) {
    units.next();
    layers_[n]->weight_grad(*state.layers[n], context);
  }
  units.finish();
  end_op();
  if (--state.slices_left == 0) states_.erase(microbatch);
}

at::Tensor Stage::backward(int microbatch, int slice, at::Tensor d_output) {
  const auto c = static_cast<std::size_t>(slice);
  State& state = states_.at(microbatch);
  UnitWalk units = walk(OpKind::B);
  if (state.empty) {
    units.pass();
    states_.erase(microbatch);
    return embedding_ ? at::Tensor() : d_output;
  }
  const SliceContext& context = state.contexts[c];
  begin_op(state, c);
  at::Tensor dx = std::move(d_output);
  if (head_) {
    units.next();
    head_->weight_grad(state.head[c]);
  }
  for (std::size_t n = layers_.size(); n-- > 0;) {
    units.next();
    dx = layers_[n]->backward(dx, *state.layers[n], context);
  }
  if (embedding_) {
    units.next();
    embedding_->backward(dx, state.tokens[c], context);
    dx = at::Tensor();
  }
  units.finish();
  end_op();
  if (--state.slices_left == 0) states_.erase(microbatch);
  return dx;
}

at::Tensor Stage::evaluate(int microbatch, int slice, const Microbatch& data,
                           const at::Tensor& input) {
  UnitWalk units = walk(OpKind::F);
  units.without_gradients();
  if (data.tokens.numel() == 0) {
    units.pass();
    return head_ ? at::Tensor() : at::empty({0, plan_.shape.dim}, kind_.values());
  }
  const auto c = static_cast<std::size_t>(slice);
  const SliceContext context = context_of(data, c);
  State& state = open(microbatch, context.num_slices());
  at::Tensor x = input;
  if (embedding_) {
    units.next();
    x = embedding_->forward(data.tokens.slice(1, bounds_[c], bounds_[c + 1]), context);
  }
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    units.next();
    x = layers_[n]->evaluate(x, *state.layers[n], context);
  }
  if (head_) {
    units.next();
    x = head_->forward(x, data.targets.slice(1, bounds_[c], bounds_[c + 1]), window_->loss_scale,
                       nullptr, context, window_->loss);
  }
  units.finish();
  if (context.last_slice()) states_.erase(microbatch);
  return x;
}

std::vector<Parameter*> Stage::parameters() {
  std::vector<Parameter*> all;
  const auto add = [&](std::vector<Parameter>& list) {
    for (Parameter& parameter : list)
      all.push_back(&parameter);
  };
  if (embedding_) add(embedding_->parameters());
  for (const auto& layer : layers_)
    add(layer->parameters());
  if (head_) add(head_->parameters());
  return all;
}

std::vector<KeptParameter> Stage::kept() {
  std::vector<KeptParameter> all;
  for (const auto& unit : units_)
    all.insert(all.end(), unit->kept().begin(), unit->kept().end());
  if (units_.empty())
    for (const Parameter* parameter : parameters())
      all.push_back({parameter, parameter->value, parameter->gradient,
                     RowRange{0, parameter->value.size(0)}});
  return all;
}

void Stage::zero_gradients() {
  for (const auto& unit : units_)
    unit->zero_gradients();
  if (!units_.empty()) return;
  for (Parameter* parameter : parameters())
    parameter->gradient.zero_();
}

}  // namespace sluice
