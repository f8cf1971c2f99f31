// A whole decoder model in one process, for sampling: it takes the tokens of one sequence and gives
// the logits of the next one. Keys and values are kept, so each further token costs only its own
// work.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sluice/model/block.h"
#include "sluice/model/ends.h"

namespace sluice {

class Decoder {
 public:
  // The weights are not initialised: fill them through parameters().
  Decoder(const ModelShape& shape, const TensorKind& kind);

  // The next tokens of the sequence, at least one -> logits of the token after them: (vocab), fp32,
  // on the model's device.
  // REQUIRES: tokens of the vocabulary, and in total no more than the model's learned positions, if
  // it has any.
  at::Tensor feed(std::span<const std::int32_t> tokens);
  // The same, with the logits after each of the tokens, a few at a time from token `first` on:
  // (n, vocab), fp32, contiguous.
  using EachLogits = std::function<void(std::int64_t first, const at::Tensor& logits)>;
  void feed_each(std::span<const std::int32_t> tokens, const EachLogits& each);
  std::int64_t length() const { return length_; }  // tokens fed
  void restart();                                  // an empty sequence again

  // In canonical order: embedding, blocks ascending, head.
  std::vector<Parameter*> parameters();

 private:
  at::Tensor hidden(std::span<const std::int32_t> tokens);  // (n, dim), after the last block

  struct Fed {
    BlockState state;                 // keys and values of all tokens fed, in slice 0
    at::Tensor key_room, value_room;  // their buffers from the second feed on
  };
  SliceContext context_of(std::int64_t count) const;  // of the next tokens
  static void join_slices(Fed& fed);

  RunPlan plan_;  // its shape and numbers, and what the blocks keep; there is no schedule
  TensorKind kind_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::vector<Fed> fed_;  // per block
  Head head_;
  std::int64_t length_ = 0;
};

}  // namespace sluice
