#include "model/decoder.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::size_t kSlices = 2;  // all tokens before, and those being fed

// The first slice takes the keys and values of the second.
void join_slices(BlockState& state) {
  BlockStash& all = state.slices[0];
  BlockStash& fed = state.slices[1];
  if (!fed.k.defined()) return;
  all.k = at::cat({all.k, fed.k}, 2);
  all.v = at::cat({all.v, fed.v}, 2);
  fed = BlockStash();
}

}  // namespace

Decoder::Decoder(const ModelShape& shape, at::ScalarType dtype)
    : shape_(shape), dtype_(dtype), embedding_(shape, 0, dtype), head_(shape, 0, dtype) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    blocks_.emplace_back(LayerOptions{.shape = shape, .layer = layer, .kind = dtype});
  restart();
}

void Decoder::restart() {
  states_.assign(blocks_.size(), {});
  for (BlockState& state : states_)
    state.slices.resize(kSlices);
  length_ = 0;
}

at::Tensor Decoder::hidden(std::span<const std::int32_t> tokens) {
  SLUICE_CHECK(!tokens.empty(), "no token is fed after {}", length_);
  const auto count = static_cast<std::int64_t>(tokens.size());
  SliceContext context;
  // Always the form of a cut sequence, since a layer keeps keys and values only where it is cut:
  // all that was fed before and what comes now, or the latter and one token to come.
  context.slice = length_ == 0 ? 0 : 1;
  context.bounds =
      length_ == 0 ? SliceBounds{0, count, count + 1} : SliceBounds{0, length_, length_ + count};
  context.positions = positions_of(1, length_, length_ + count, {});
  context.level = RecomputeLevel::full;
  if (shape_.family == ModelFamily::llama)
    context.rotation = rotation(context.positions, shape_, dtype_);
  const at::Tensor fed = at::empty({1, count}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), fed.mutable_data_ptr<std::int64_t>());
  Embedding::Stash unused;
  at::Tensor x = embedding_.forward(fed, unused, context);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    x = blocks_[b].evaluate(x, states_[b], context);
    join_slices(states_[b]);
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
