#include "sluice/runtime/gradient_sums.h"

#include "sluice/base/error.h"

namespace sluice {

void GradientSums::begin(int stage) {
  sum_shared_gradients(parts_.stages.at(stage)->kept(), parts_.tensor);
  parts_.data.begin_sums(parts_.weights.at(stage));
  begun_.insert(stage);
}

void GradientSums::finish() {
  for (const auto& [number, stage] : parts_.stages)
    if (!begun_.contains(number)) begin(number);
  begun_.clear();
  parts_.data.finish_sums();
  add_replicas();
  if (parts_.plan.shape.tied_embeddings) add_tied();
}

at::Tensor GradientSums::exchange(int peer, const at::Tensor& mine, TrafficClass traffic,
                                  const char* label) {
  parts_.traffic.add(traffic, mine.numel());
  // On a GPU the tensor itself is handed over, so it is copied: this rank writes to its own next.
  const at::Tensor given = mine.is_cuda() ? mine.clone() : mine;
  TensorMessage sent = parts_.pipeline.send(peer, given, label);
  TensorMessage theirs = parts_.pipeline.recv(peer, mine.sizes().vec(), mine.options(), label);
  sent.wait();
  theirs.wait();
  return theirs.take();
}

// With two pipes there are two copies of every stage. Both add the gradients of pipe 0 and of pipe
// 1, in this order. From here on only the rows that this rank updates matter.
void GradientSums::add_replicas() {
  const Schedule& schedule = parts_.plan.schedule;
  if (schedule.num_pipes() == 1) return;
  SLUICE_CHECK(schedule.num_pipes() == 2, "{} pipes", schedule.num_pipes());
  for (const auto& [number, weights] : parts_.weights) {
    const int first = schedule.placement.device_of(0, number);
    const int second = schedule.placement.device_of(1, number);
    if (first == second) continue;
    const bool is_first = parts_.mesh.place().pipeline == first;
    for (const Weight& weight : weights) {
      at::Tensor mine = weight.own_gradient();
      const at::Tensor theirs =
          exchange(is_first ? second : first, mine, TrafficClass::gradient, "replica gradient");
      mine.copy_(is_first ? mine + theirs : theirs + mine);
    }
  }
}

// Tied embeddings: the gradient of the lookup plus that of the head, on both ends.
void GradientSums::add_tied() {
  const auto find = [&](const char* name) {
    at::Tensor found;
    for (const auto& [number, weights] : parts_.weights)
      for (const Weight& weight : weights)
        if (weight.name == name) found = weight.own_gradient();
    return found;
  };
  at::Tensor lookup = find("embedding.weight");
  at::Tensor head = find("head.weight");
  if (lookup.defined() && head.defined()) {
    const at::Tensor sum = lookup + head;
    lookup.copy_(sum);
    head.copy_(sum);
    return;
  }
  if (!lookup.defined() && !head.defined()) return;
  const Schedule& schedule = parts_.plan.schedule;
  const int last = schedule.num_stages() - 1;
  const int peer = schedule.placement.device_of(0, lookup.defined() ? last : 0);
  at::Tensor mine = lookup.defined() ? lookup : head;
  const at::Tensor theirs = exchange(peer, mine, TrafficClass::embedding, "tied gradient");
  mine.copy_(lookup.defined() ? mine + theirs : theirs + mine);
}

}  // namespace sluice
