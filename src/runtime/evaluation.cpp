#include "sluice/runtime/evaluation.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/error.h"

namespace sluice {
namespace {

void check_tokens(std::span<const std::int32_t> tokens, std::int64_t first, const Config& config,
                  const TokenSource& source) {
  const auto beyond = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t token) {
    return token >= config.model.vocab_size;
  });
  if (beyond != tokens.end())
    throw UserError(fmt::format("token {} of {} is {}: the model's vocabulary is 0 to {}",
                                first + (beyond - tokens.begin()), source.name(), *beyond,
                                config.model.vocab_size - 1),
                    ExitCode::bad_data);
}

// Adds the losses: row i of the logits predicts targets[i]. The last row may have no target.
void add_losses(const at::Tensor& logits, std::span<const std::int32_t> targets, Evaluation& out) {
  const auto count = std::min(logits.size(0), static_cast<std::int64_t>(targets.size()));
  if (count == 0) return;
  const at::Tensor rows = logits.slice(0, 0, count);
  const at::Tensor wanted = at::empty({count, 1}, at::kLong);
  std::copy_n(targets.begin(), count, wanted.mutable_data_ptr<std::int64_t>());
  const at::Tensor lost =
      (at::logsumexp(rows, 1) - rows.gather(1, wanted.to(rows.device())).squeeze(1))
          .to(at::kDouble)
          .cpu()
          .contiguous();
  for (const double loss :
       std::span(lost.const_data_ptr<double>(), static_cast<std::size_t>(count))) {
    out.per_token.emplace_back(loss);
    out.loss += loss;  // the sum, until all are in
    out.non_finite += std::isfinite(loss) ? 0 : 1;
  }
  out.tokens += count;
}

std::int64_t length_of(const EvaluationOptions& options, const Config& config) {
  const std::int64_t most = config.model.positions;
  if (options.sequence_length > most)
    throw user_error("`sequence_length` is {}: the model takes at most {} tokens (model.positions)",
                     options.sequence_length, most);
  return options.sequence_length ? options.sequence_length
                                 : std::int64_t{config.training.sequence_length};
}

}  // namespace

Evaluation evaluate(LoadedModel& model, const TokenSource& source,
                    const EvaluationOptions& options) {
  Evaluation out;
  out.sequence_length = length_of(options, model.config);
  const std::vector<std::int64_t>& starts = source.document_starts();
  std::vector<std::int32_t> tokens;
  for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
    const std::int64_t end = starts[d + 1];
    if (starts[d] < end) out.per_token.emplace_back(std::nullopt);
    for (std::int64_t begin = starts[d]; begin < end; begin += out.sequence_length) {
      const std::int64_t length = std::min(out.sequence_length, end - begin);
      tokens.resize(static_cast<std::size_t>(std::min(length + 1, end - begin)));
      source.read(begin, tokens);
      check_tokens(tokens, begin, model.config, source);
      model.decoder->restart();
      model.decoder->feed_each(
          std::span(tokens).first(static_cast<std::size_t>(length)),
          [&](std::int64_t first, const at::Tensor& logits) {
            add_losses(logits, std::span(tokens).subspan(static_cast<std::size_t>(first) + 1), out);
            if (!options.on_logits) return;
            const at::Tensor read = logits.cpu();
            options.on_logits(
                {read.const_data_ptr<float>(), static_cast<std::size_t>(read.numel())});
          });
    }
  }
  out.loss /= static_cast<double>(std::max<std::int64_t>(out.tokens, 1));
  return out;
}

}  // namespace sluice
