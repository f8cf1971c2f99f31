// The loss of a checkpoint's model on given tokens, by the same forward pass that training uses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sluice/data/token_source.h"
#include "sluice/runtime/loaded_model.h"

namespace sluice {

struct EvaluationOptions {
  std::int64_t sequence_length = 0;  // 0: the length that the checkpoint was trained with
  // Called with the logits that follow each token, in order, a few rows at a time: (n, vocab).
  std::function<void(std::span<const float>)> on_logits;
};

struct Evaluation {
  // Nats, the mean over `tokens`. One loss that is not finite makes the mean not finite.
  double loss = 0;
  std::int64_t tokens = 0;      // predicted ones: all but the first of each document
  std::int64_t non_finite = 0;  // of these, how many have a loss of NaN or infinity
  std::int64_t sequence_length = 0;
  std::vector<std::optional<double>> per_token;  // nothing for the first token of a document
};

// Each document is a sequence. A longer one is cut into parts, and attention does not cross a cut.
// The first token of a later part is predicted by the last token of the part before. Throws
// UserError: usage for a length that the model cannot take, bad_data for a token beyond the
// vocabulary.
Evaluation evaluate(LoadedModel& model, const TokenSource& source,
                    const EvaluationOptions& options = {});

}  // namespace sluice
