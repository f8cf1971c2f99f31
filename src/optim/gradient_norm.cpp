#include "sluice/optim/gradient_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sluice/base/error.h"
#include "sluice/cost/parameters.h"
#include "sluice/cuda/functions.h"

namespace sluice {
namespace {

constexpr auto kBlocks = static_cast<std::size_t>(kRowBlocks);

// Always adds up the same eight partial sums, so that a compiler may vectorize the loop.
double sum_of_squares(const float* values, std::int64_t count) {
  std::array<double, 8> sums{};
  std::int64_t n = 0;
  for (; n + 8 <= count; n += 8)
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const double value = values[n + static_cast<std::int64_t>(lane)];
      sums[lane] += value * value;
    }
  double total = 0;
  for (const double sum : sums)
    total += sum;
  for (; n < count; ++n) {
    const double value = values[n];
    total += value * value;
  }
  return total;
}

// As cuda::block_squares.
void block_squares(const at::Tensor& gradient, const std::vector<std::int64_t>& bounds,
                   const at::Tensor& out) {
  const at::Tensor wide = gradient.to(at::kFloat);
  const float* values = wide.const_data_ptr<float>();
  double* sums = out.mutable_data_ptr<double>();
  const std::int64_t width = wide.size(1);
  for (std::size_t b = 0; b + 1 < bounds.size(); ++b)
    sums[b] = sum_of_squares(values + bounds[b] * width, (bounds[b + 1] - bounds[b]) * width);
}

// The blocks of a weight within the rows that a rank updates. They are consecutive.
struct OwnBlocks {
  std::int64_t first = 0;
  std::vector<std::int64_t> bounds;  // own rows, counted from the first of them
  std::int64_t count() const { return static_cast<std::int64_t>(bounds.size()) - 1; }
};
OwnBlocks own_blocks(const Weight& weight) {
  OwnBlocks own;
  for (std::int64_t block = 0; block < kRowBlocks; ++block) {
    const BlockRows rows = block_rows(weight.rows(), block);
    if (rows.begin < weight.own.begin || rows.end > weight.own.end) continue;
    if (own.bounds.empty()) {
      own.first = block;
      own.bounds.push_back(rows.begin - weight.own.begin);
    }
    own.bounds.push_back(rows.end - weight.own.begin);
  }
  return own;
}

// Every rank's values, in rank order.
template <typename T>
std::vector<T> gather_all(std::span<const T> mine, Communicator& group) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), "totals");
  return all;
}

// Fills in the blocks of all other shards. Each block is one shard's, and 0 elsewhere.
void gather_blocks(std::vector<double>& sums, const Mesh& mesh) {
  if (mesh.shape().shard == 1) return;
  const std::vector<double> all = gather_all<double>(sums, mesh.shard_group());
  const std::size_t count = sums.size();
  for (std::size_t n = 0; n < all.size(); ++n)
    sums[n % count] = n < count ? all[n] : sums[n % count] + all[n];
}

}  // namespace

std::vector<double> block_sums(std::span<const Weight> weights) {
  if (weights.empty()) return {};
  // On the gradients' device. From a GPU it is copied to the host in one piece.
  const at::Tensor sums = at::zeros({static_cast<std::int64_t>(weights.size()), kRowBlocks},
                                    weights[0].gradient.options().dtype(at::kDouble));
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const Weight& weight = weights[w];
    const OwnBlocks blocks = own_blocks(weight);
    if (!weight.counted || weight.own.count() == 0 || blocks.bounds.empty()) continue;
    at::Tensor out =
        sums[static_cast<std::int64_t>(w)].slice(0, blocks.first, blocks.first + blocks.count());
    const at::Tensor gradient = weight.own_gradient().reshape({weight.own.count(), -1});
    if (gradient.is_cuda())
      cuda::block_squares(gradient, blocks.bounds, out);
    else
      block_squares(gradient, blocks.bounds, out);
  }
  const at::Tensor here = sums.cpu();
  const double* values = here.const_data_ptr<double>();
  return {values, values + here.numel()};
}

double StepTotals::gradient_norm() const { return std::sqrt(squares); }

bool StepTotals::finite() const { return std::isfinite(loss) && std::isfinite(squares); }

DeviceTotals device_totals(const std::map<int, std::vector<Weight>>& stages, double loss, bool stop,
                           const Mesh& mesh) {
  DeviceTotals totals;
  // Over data ranks, in their order; then over tensor ranks, which have the same loss.
  const double mine[] = {loss, stop ? 1.0 : 0.0};
  double flags[] = {0, 0};
  const std::vector<double> of_data = gather_all<double>(mine, mesh.data());
  for (std::size_t n = 0; n < of_data.size(); ++n)
    flags[n % 2] += of_data[n];
  totals.loss = flags[0];
  for (const double asked : gather_all<double>(std::span(flags).last(1), mesh.tensor()))
    totals.stop += static_cast<std::int64_t>(asked);

  std::vector<Weight> all_weights;
  for (const auto& [number, weights] : stages)
    all_weights.insert(all_weights.end(), weights.begin(), weights.end());
  std::vector<double> sums = block_sums(all_weights);
  gather_blocks(sums, mesh);
  const std::vector<double> all = gather_all<double>(sums, mesh.tensor());
  std::size_t first = 0;
  for (const auto& [number, weights] : stages) {
    std::vector<double>& ordered = totals.squares[number];
    for (std::size_t w = 0; w < weights.size(); ++w, first += kBlocks)
      for (std::size_t rank = 0; rank < all.size() / std::max<std::size_t>(sums.size(), 1); ++rank)
        for (std::size_t b = 0; b < kBlocks; ++b)
          ordered.push_back(all[rank * sums.size() + first + b]);
  }
  return totals;
}

TotalsChain::TotalsChain(const Placement& placement, Communicator& pipeline)
    : placement_(placement), pipeline_(pipeline) {
  for (int stage = 0; stage < placement.num_stages(); ++stage)
    if (placement.device_of(0, stage) == pipeline.rank()) stages_.push_back(stage);
  SLUICE_CHECK(!stages_.empty(), "device {} has no stage of pipe 0", pipeline.rank());
}

bool TotalsChain::from_elsewhere(int stage) const {
  return stage > 0 && placement_.device_of(0, stage - 1) != pipeline_.rank();
}

void TotalsChain::begin(DeviceTotals mine) {
  mine_ = std::move(mine);
  running_ = {};
  next_ = 0;
  // Messages from another device arrive in the order of stages, the totals last.
  for (const int stage : stages_)
    if (from_elsewhere(stage)) post_recv(placement_.device_of(0, stage - 1));
  const int last = placement_.device_of(0, placement_.num_stages() - 1);
  if (last != pipeline_.rank()) post_recv(last);
  advance(false);
}

void TotalsChain::advance(bool blocking) {
  for (; next_ < stages_.size(); ++next_) {
    const int stage = stages_[next_];
    if (from_elsewhere(stage)) {
      Message& message = arriving_.front();
      if (blocking)
        pipeline_.wait(message.request);
      else if (!pipeline_.test(message.request))
        return;
      running_ = message.totals;
      arriving_.pop_front();
    }
    if (next_ == 0) {
      running_.loss += mine_.loss;
      running_.stop += mine_.stop;
    }
    for (const double square : mine_.squares.at(stage))
      running_.squares += square;
    hand_on(stage);
  }
}

void TotalsChain::hand_on(int stage) {
  const bool last = stage == placement_.num_stages() - 1;
  for (int device = 0; device < pipeline_.size(); ++device)
    if (device != pipeline_.rank() && (last || device == placement_.device_of(0, stage + 1)))
      post_send(device);
}

StepTotals TotalsChain::finish() {
  advance(true);
  if (!arriving_.empty()) {
    pipeline_.wait(arriving_.front().request);
    running_ = arriving_.front().totals;
    arriving_.clear();
  }
  for (Message& message : sent_)
    pipeline_.wait(message.request);
  sent_.clear();
  return running_;
}

// On the collectives' lane, so that they do not come between the tensors of the next step.
void TotalsChain::post_send(int device) {
  Message& message = sent_.emplace_back(Message{running_, {}});
  message.request =
      pipeline_.post_send(Lane::collectives, device, std::as_bytes(std::span(&message.totals, 1)),
                          "totals of the step");
}

void TotalsChain::post_recv(int device) {
  Message& message = arriving_.emplace_back();
  message.request = pipeline_.post_recv(Lane::collectives, device,
                                        std::as_writable_bytes(std::span(&message.totals, 1)),
                                        "totals of the step");
}

}  // namespace sluice
