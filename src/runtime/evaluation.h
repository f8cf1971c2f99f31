// What a checkpoint's model makes of given tokens: its loss on each, with the training model's own
// forward.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/token_source.h"
#include "runtime/loaded_model.h"

namespace sluice {

struct EvaluationOptions {
  std::int64_t sequence_length = 0;  // 0: that of the run that saved it
  // Called with the logits behind every token, in order, a few at a time: (n, vocab), row by row.
  std::function<void(std::span<const float>)> on_logits;
};

struct Evaluation {
  double loss = 0;          // nats, the mean over `tokens`
  std::int64_t tokens = 0;  // that had something before them
  std::int64_t sequence_length = 0;
  std::vector<double> per_token;  // of every token; NaN for the first of each document
};

// Every document is a sequence; a longer one is cut, and each part begins without a past. The first
// token of a further part is still predicted, by the last of the one before. Throws UserError:
// usage for a length that the model cannot take, bad_data for a token beyond the vocabulary.
Evaluation evaluate(LoadedModel& model, const TokenSource& source,
                    const EvaluationOptions& options = {});

}  // namespace sluice
