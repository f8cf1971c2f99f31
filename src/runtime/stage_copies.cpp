#include "sluice/runtime/stage_copies.h"

#include <algorithm>

namespace sluice {
namespace {

using Rows = at::Tensor (Weight::*)() const;  // own ones

at::Tensor packed(const std::vector<Weight>& weights, Rows rows) {
  std::vector<at::Tensor> flat;
  for (const Weight& weight : weights)
    flat.push_back((weight.*rows)().reshape({-1}));
  return at::cat(flat);
}

void unpack(const at::Tensor& from, const std::vector<Weight>& weights, Rows rows) {
  std::int64_t begin = 0;
  for (const Weight& weight : weights) {
    at::Tensor into = (weight.*rows)();
    into.copy_(from.slice(0, begin, begin + into.numel()).view(into.sizes()));
    begin += into.numel();
  }
}

}  // namespace

std::vector<at::Tensor> StageCopies::exchange(const CopyPeers& peers, const at::Tensor& mine,
                                              TrafficClass traffic, const char* label) {
  std::vector<TensorMessage> sent, arriving;
  if (!peers.to.empty()) {
    // On a GPU the tensor itself is handed over, so it is copied: this rank writes to its own next.
    const at::Tensor given = mine.is_cuda() ? mine.clone() : mine;
    for (const int to : peers.to) {
      traffic_.add(traffic, mine.numel());
      sent.push_back(pipeline_.send(to, given, label));
    }
  }
  for (const int from : peers.from)
    arriving.push_back(pipeline_.recv(from, mine.sizes().vec(), mine.options(), label));
  for (TensorMessage& message : sent)
    message.wait();
  std::vector<at::Tensor> theirs;
  for (TensorMessage& message : arriving) {
    message.wait();
    theirs.push_back(message.take());
  }
  return theirs;
}

void StageCopies::add_gradients() {
  for (const auto& [stage, weights] : weights_)
    add_copies(stage, weights);
  if (plan_.shape.tied_embeddings) add_tied();
}

// All weights of a stage as one message.
void StageCopies::add_copies(int stage, const std::vector<Weight>& weights) {
  const CopyPeers peers = gradient_peers(plan_, stage, device());
  if (peers.from.empty() && peers.to.empty()) return;
  const at::Tensor mine = packed(weights, &Weight::own_gradient);
  const std::vector<at::Tensor> theirs =
      exchange(peers, mine, TrafficClass::gradient, "replica gradients");
  if (peers.from.empty()) return;
  // Left to right over the holders.
  at::Tensor sum;
  std::size_t next = 0;
  for (const int holder : plan_.schedule.placement.holders_of(stage)) {
    const at::Tensor& part = holder == device() ? mine : theirs[next++];
    sum = sum.defined() ? sum + part : part;
  }
  unpack(sum, weights, &Weight::own_gradient);
}

void StageCopies::add_tied() {
  const int last = plan_.schedule.num_stages() - 1;
  const auto find = [&](int stage, const char* name) {
    at::Tensor found;
    const auto held = weights_.find(stage);
    if (held == weights_.end()) return found;
    for (const Weight& weight : held->second)
      if (weight.name == name) found = weight.own_gradient();
    return found;
  };
  at::Tensor lookup = find(0, "embedding.weight"), head = find(last, "head.weight");
  // What the other end's owner sends, before either end is added to.
  at::Tensor of_head, of_lookup;
  const auto exchange_end = [&](int stage, const at::Tensor& mine) {
    if (!mine.defined()) return at::Tensor();
    const std::vector<at::Tensor> theirs = exchange(tied_peers(plan_, stage, device()), mine,
                                                    TrafficClass::embedding, "tied gradient");
    return theirs.empty() ? at::Tensor() : theirs[0];
  };
  of_head = exchange_end(0, lookup);
  of_lookup = exchange_end(last, head);
  if (lookup.defined() && head.defined() && !of_head.defined() && !of_lookup.defined()) {
    const at::Tensor sum = lookup + head;
    lookup.copy_(sum);
    head.copy_(sum);
    return;
  }
  if (of_head.defined()) lookup.copy_(lookup + of_head);
  if (of_lookup.defined()) head.copy_(of_lookup + head);
}

void StageCopies::share_values() {
  for (const auto& [stage, weights] : weights_) {
    const CopyPeers peers = value_peers(plan_, stage, device());
    if (peers.from.empty() && peers.to.empty()) continue;
    const std::vector<at::Tensor> theirs = exchange(peers, packed(weights, &Weight::own_value),
                                                    TrafficClass::parameter, "owner's weights");
    if (!theirs.empty()) unpack(theirs[0], weights, &Weight::own_value);
  }
}

}  // namespace sluice
