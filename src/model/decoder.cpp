#include "sluice/model/decoder.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/model/attention_packed.h"

namespace sluice {
namespace {

constexpr int kSlices = 2;  // all tokens before, and those being fed

TensorKind untrained(TensorKind kind) {
  kind.trained = false;
  return kind;
}

// Appends `more` to `all`, keys or values (1, heads, n, head_dim). `all` then lies in `room`. A
// full `room` is replaced by one twice as large as needed.
void append(at::Tensor& all, const at::Tensor& more, at::Tensor& room) {
  const std::int64_t length = all.size(2), end = length + more.size(2);
  if (!room.defined() || room.size(2) < end) {
    room = at::empty({1, 2 * end, all.size(1), all.size(3)}, all.options()).transpose(1, 2);
    room.slice(2, 0, length).copy_(all);
  }
  room.slice(2, length, end).copy_(more);
  all = room.slice(2, 0, end);
}

}  // namespace

Decoder::Decoder(const ModelShape& shape, const TensorKind& kind)
    : kind_(untrained(kind)), embedding_(shape, 0, kind_), head_(shape, 0, kind_) {
  plan_.shape = shape;
  plan_.config.training.dtype =
      kind.dtype == at::kBFloat16 ? NumberType::bfloat16 : NumberType::float32;
  plan_.config.recompute.level = RecomputeLevel::full;
  plan_.schedule.num_slices = kSlices;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    blocks_.emplace_back(LayerOptions{.shape = shape, .layer = layer, .kind = kind_});
  restart();
}

void Decoder::restart() {
  fed_.assign(blocks_.size(), {});
  for (Fed& fed : fed_)
    fed.state.slices.resize(kSlices);
  length_ = 0;
}

// Appends the keys and values of the second slice to those of the first.
void Decoder::join_slices(Fed& fed) {
  BlockStash& all = fed.state.slices[0];
  BlockStash& more = fed.state.slices[1];
  if (!more.k.defined()) return;
  append(all.k, more.k, fed.key_room);
  append(all.v, more.v, fed.value_room);
  more = BlockStash();
}

SliceContext Decoder::context_of(std::int64_t count) const {
  SliceContext context;
  // Always two slices, since a layer keeps keys and values only of a cut sequence: all tokens fed
  // before and those fed now, or at the start those fed now and one token to come.
  context.slice = length_ == 0 ? 0 : 1;
  context.bounds =
      length_ == 0 ? SliceBounds{0, count, count + 1} : SliceBounds{0, length_, length_ + count};
  context.positions = positions_of(1, length_, length_ + count, {}).to(kind_.device);
  context.plan = &plan_;
  if (plan_.shape.family == ModelFamily::llama)
    context.rotation = rotation(context.positions, plan_.shape, kind_);
  if (kind_.on_gpu() && kind_.dtype != at::kFloat) {
    // As packed documents, whose kernel takes any length at once. The other kernel makes a plan for
    // each new length, and here every token brings a new one.
    context.documents.starts = {{0}};
    context.documents.packed = std::make_shared<PackedDocuments>(packed_documents(
        packed_calls(context.documents, context.bounds, context.slice, {}), kind_.device));
  }
  return context;
}

at::Tensor Decoder::hidden(std::span<const std::int32_t> tokens) {
  SLUICE_CHECK(!tokens.empty(), "no token is fed after {}", length_);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const SliceContext context = context_of(count);
  const at::Tensor numbers = at::empty({1, count}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), numbers.mutable_data_ptr<std::int64_t>());
  at::Tensor x = embedding_.forward(numbers.to(kind_.device), context);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    x = blocks_[b].evaluate(x, fed_[b].state, context);
    join_slices(fed_[b]);
  }
  length_ += count;
  return x;
}

at::Tensor Decoder::feed(std::span<const std::int32_t> tokens) {
  const at::Tensor x = hidden(tokens);
  return head_.logits(x.slice(0, x.size(0) - 1)).reshape({-1}).to(at::kFloat);
}

void Decoder::feed_each(std::span<const std::int32_t> tokens, const EachLogits& each) {
  constexpr std::int64_t kTokens = 256;  // whose logits are held at once
  const at::Tensor x = hidden(tokens);
  for (std::int64_t first = 0; first < x.size(0); first += kTokens)
    each(first, head_.logits(x.slice(0, first, std::min(first + kTokens, x.size(0))))
                    .to(at::kFloat)
                    .contiguous());
}

std::vector<Parameter*> Decoder::parameters() {
  std::vector<Parameter*> all;
  const auto add = [&](std::vector<Parameter>& list) {
    for (Parameter& parameter : list)
      all.push_back(&parameter);
  };
  add(embedding_.parameters());
  for (Block& block : blocks_)
    add(block.parameters());
  add(head_.parameters());
  return all;
}

}  // namespace sluice
