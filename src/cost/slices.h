// How a sequence is cut into slices, and how much of its work each slice is.
//
// A token of a decoder attends to itself and to all tokens before it, so a later slice of as many
// tokens works more. Slices are even (as many tokens in each) or balanced (as much work in each).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// Work of a causal sequence: a part that grows with the tokens, and attention, which grows with
// their positions too.
struct WorkTerms {
  double linear = 0;     // of a token
  double quadratic = 0;  // of a sequence, over its length squared

  // Of the tokens [begin, end). What adjacent ranges do adds up to what both do as one.
  double of(std::int64_t begin, std::int64_t end) const {
    return static_cast<double>(end - begin) *
           (linear + quadratic * static_cast<double>(begin + end));
  }
  // Of the mean token of a sequence.
  double of_a_token(std::int64_t length) const {
    return linear + quadratic * static_cast<double>(length);
  }
  friend WorkTerms operator+(const WorkTerms& a, const WorkTerms& b) {
    return {a.linear + b.linear, a.quadratic + b.quadratic};
  }
};

// FLOPs of F, I and W, on top of cost/flops.h: with all that is computed again, be it by
// recomputation, by attention's backward pass or by the head, which computes its logits twice. An
// encoder's are right for whole sequences only: there, each token attends to later ones too.
struct OpTerms {
  WorkTerms f, i, w;

  WorkTerms sum() const { return f + i + w; }
};
OpTerms block_terms(const ModelShape& shape, RecomputeLevel level);
OpTerms head_terms(const ModelShape& shape);
// All blocks and the head.
OpTerms model_terms(const ModelShape& shape, RecomputeLevel level);

// FLOPs that a step executes per token, forward and backward. The planner balances stages by it.
// `length` is that of a sequence.
inline double block_work(const ModelShape& shape, RecomputeLevel level, std::int64_t length) {
  return block_terms(shape, level).sum().of_a_token(length);
}
inline double head_work(const ModelShape& shape) { return head_terms(shape).sum().linear; }

// The one rule for even slices: the first length mod `slices` of them are one token longer.
// REQUIRES: 0 <= slice < slices.
std::int64_t even_slice_size(std::int64_t length, int slices, int slice);
std::vector<std::int64_t> even_slice_sizes(std::int64_t length, int slices);
// Tokens of each slice of a schedule: its slice_sizes, else even ones of a sequence of `length`.
std::vector<std::int64_t> slice_sizes_of(const Schedule& schedule, std::int64_t length);

// The first token of each slice, and the end of the last.
std::vector<std::int64_t> slice_bounds(std::span<const std::int64_t> sizes);

struct BalancedSlicing {
  std::int64_t length = 0;  // tokens of a sequence
  int slices = 1;
  std::int64_t multiple = 128;  // of tokens, at which slices begin
  // Ranks that divide the tokens of each slice among them (sequence-parallel norms): slices begin
  // at a multiple of it, too.
  std::int64_t tensor = 1;
};
// 128 tokens, as many as a GPU's matmul tile has rows; or a smaller power of two, so that it is at
// most an eighth of a mean slice.
std::int64_t default_slice_multiple(std::int64_t length, int slices);
// Slices of equal work: each begins at the multiple nearest to its share of the work, and the last
// one takes the rest. Where a slice would be empty, the multiple is halved until none is. Throws
// UserError where there are fewer tokens (or multiples of `tensor`) than slices. REQUIRES: terms
// that are not negative, and one that is positive.
std::vector<std::int64_t> balanced_slice_sizes(const WorkTerms& work,
                                               const BalancedSlicing& slicing);
// Throws UserError for an encoder, whose tokens attend to later ones.
void check_slices(const ModelShape& shape);
// By F + I + W of the whole model: one set of sizes for all of its stages and for every schedule.
// Throws UserError as check_slices does, too.
std::vector<std::int64_t> balanced_slice_sizes(const ModelShape& shape, RecomputeLevel level,
                                               const BalancedSlicing& slicing);

// Each slice's share of the work; they add up to 1. By tokens where there is no work. REQUIRES: at
// least one token.
std::vector<double> work_shares(const WorkTerms& work, std::span<const std::int64_t> sizes);
struct SliceShares {
  std::vector<double> f, i, w;  // by slice
};
SliceShares slice_shares(const OpTerms& work, std::span<const std::int64_t> sizes);

}  // namespace sluice
