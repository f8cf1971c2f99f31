#include "sluice/cost/slices.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/cost/flops.h"

namespace sluice {
namespace {

WorkTerms times(double count, const WorkTerms& terms) {
  return {count * terms.linear, count * terms.quadratic};
}

}  // namespace

OpTerms block_terms(const ModelShape& shape, RecomputeLevel level) {
  const LayerFlops forward = layer_flops(shape, 1);
  // Attention's forward pass has two matmuls; its backward pass has five, since it computes the
  // scores again. A token's share of them grows with the length of its sequence.
  OpTerms terms = {.f = {forward.matmuls(), forward.attention},
                   .i = {forward.matmuls(), 2.5 * forward.attention},
                   .w = {forward.matmuls(), 0}};
  if (level >= RecomputeLevel::mlp) terms.i.linear += forward.up;
  if (level >= RecomputeLevel::all_but_attention)
    // An encoder's last norm comes after the down projection.
    terms.i.linear += forward.qkv + forward.out + (shape.encoder() ? forward.down : 0);
  if (level >= RecomputeLevel::full) terms.i.quadratic += forward.attention;
  return terms;
}

OpTerms head_terms(const ModelShape& shape) {
  // F: logits and the gradient of the input, which I only hands on; W: the logits again, and the
  // gradient of the weight.
  const HeadFlops forward = head_flops(shape);
  const WorkTerms half = {2 * forward.logits + 1.5 * forward.dense, 0};
  return {.f = half, .i = {}, .w = half};
}

OpTerms model_terms(const ModelShape& shape, RecomputeLevel level) {
  const auto layers = static_cast<double>(shape.layers);
  const OpTerms block = block_terms(shape, level), head = head_terms(shape);
  return {.f = times(layers, block.f) + head.f,
          .i = times(layers, block.i) + head.i,
          .w = times(layers, block.w) + head.w};
}

std::int64_t even_slice_size(std::int64_t length, int slices, int slice) {
  return length / slices + (slice < length % slices ? 1 : 0);
}

std::vector<std::int64_t> even_slice_sizes(std::int64_t length, int slices) {
  std::vector<std::int64_t> sizes;
  for (int slice = 0; slice < slices; ++slice)
    sizes.push_back(even_slice_size(length, slices, slice));
  return sizes;
}

std::vector<std::int64_t> slice_sizes_of(const Schedule& schedule, std::int64_t length) {
  return schedule.slice_sizes.empty() ? even_slice_sizes(length, schedule.num_slices)
                                      : schedule.slice_sizes;
}

std::vector<std::int64_t> slice_bounds(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> bounds = {0};
  for (const std::int64_t size : sizes)
    bounds.push_back(bounds.back() + size);
  return bounds;
}

std::int64_t default_slice_multiple(std::int64_t length, int slices) {
  std::int64_t multiple = 128;
  while (multiple > 1 && multiple * 8 > length / slices)
    multiple /= 2;
  return multiple;
}

namespace {

// Where each slice but the first begins, in steps of so many tokens: nearest to its share.
std::vector<std::int64_t> nearest_starts(const WorkTerms& work, const BalancedSlicing& slicing,
                                         std::int64_t step) {
  std::vector<std::int64_t> starts;
  const double all = work.of(0, slicing.length);
  for (int slice = 1; slice < slicing.slices; ++slice) {
    // The position before which this much work is: the positive root of a quadratic equation.
    const double before = all * slice / slicing.slices;
    const double root =
        2 * before /
        (work.linear + std::sqrt(work.linear * work.linear + 4 * work.quadratic * before));
    starts.push_back(std::llround(root / static_cast<double>(step)));
  }
  return starts;
}

// Steps by which no slice is empty; `most` is the last one that leaves a token after it.
bool apart(const std::vector<std::int64_t>& starts, std::int64_t most) {
  std::int64_t before = 0;
  for (const std::int64_t start : starts) {
    if (start <= before) return false;
    before = start;
  }
  return before <= most;
}

// Moves starts as far as it takes to leave every slice at least one step. REQUIRES: most >= starts.
void push_apart(std::vector<std::int64_t>& starts, std::int64_t most) {
  std::int64_t least = 1, room = most - static_cast<std::int64_t>(starts.size()) + 1;
  for (std::int64_t& start : starts) {
    start = std::clamp(start, least, room++);
    least = start + 1;
  }
}

}  // namespace

std::vector<std::int64_t> balanced_slice_sizes(const WorkTerms& work,
                                               const BalancedSlicing& slicing) {
  const std::int64_t length = slicing.length, tensor = slicing.tensor;
  if ((length - 1) / tensor + 1 < slicing.slices)
    throw user_error("a sequence of {} tokens{} has fewer than {} slices: use at most {} slices",
                     length,
                     tensor > 1 ? fmt::format(", of which {} ranks take equal parts,", tensor) : "",
                     slicing.slices, (length - 1) / tensor + 1);
  for (std::int64_t multiple = std::max<std::int64_t>(slicing.multiple, 1);; multiple /= 2) {
    const std::int64_t step = std::lcm(multiple, tensor), most = (length - 1) / step;
    std::vector<std::int64_t> starts = nearest_starts(work, slicing, step);
    if (multiple == 1) push_apart(starts, most);
    if (!apart(starts, most)) continue;
    std::vector<std::int64_t> sizes;
    std::int64_t begin = 0;
    for (const std::int64_t start : starts) {
      sizes.push_back(start * step - begin);
      begin = start * step;
    }
    sizes.push_back(length - begin);
    return sizes;
  }
}

void check_slices(const ModelShape& shape) {
  if (shape.encoder())
    throw user_error(
        "a bert model takes no slices, because each token attends to later ones: use one slice");
}

std::vector<std::int64_t> balanced_slice_sizes(const ModelShape& shape, RecomputeLevel level,
                                               const BalancedSlicing& slicing) {
  check_slices(shape);
  return balanced_slice_sizes(model_terms(shape, level).sum(), slicing);
}

std::vector<double> work_shares(const WorkTerms& work, std::span<const std::int64_t> sizes) {
  const std::vector<std::int64_t> bounds = slice_bounds(sizes);
  const WorkTerms counted = work.of(0, bounds.back()) > 0 ? work : WorkTerms{.linear = 1};
  const double all = counted.of(0, bounds.back());
  std::vector<double> shares;
  for (std::size_t c = 0; c < sizes.size(); ++c)
    shares.push_back(counted.of(bounds[c], bounds[c + 1]) / all);
  return shares;
}

SliceShares slice_shares(const OpTerms& work, std::span<const std::int64_t> sizes) {
  return {work_shares(work.f, sizes), work_shares(work.i, sizes), work_shares(work.w, sizes)};
}

}  // namespace sluice
