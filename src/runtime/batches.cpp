#include "runtime/batches.h"

#include <algorithm>

namespace sluice {
namespace {

void fill(Microbatch& batch, std::int64_t row, const Sample& sample) {
  const auto length = static_cast<std::int64_t>(sample.tokens.size());
  std::copy(sample.tokens.begin(), sample.tokens.end(),
            batch.tokens.mutable_data_ptr<std::int64_t>() + row * length);
  std::copy(sample.targets.begin(), sample.targets.end(),
            batch.targets.mutable_data_ptr<std::int64_t>() + row * length);
  batch.documents.starts.emplace_back(sample.segment_starts.begin(), sample.segment_starts.end());
}

}  // namespace

GlobalBatch load_batch(const Dataset& data, std::int64_t first_sample, std::int64_t num_sequences,
                       int num_microbatches, const DataShare& share) {
  GlobalBatch out;
  const std::int64_t sequences = num_sequences / share.count;
  const std::int64_t first = first_sample + share.index * sequences;
  const std::int64_t rows = sequences / num_microbatches;
  for (int m = 0; m < num_microbatches; ++m) {
    Microbatch batch;
    for (std::int64_t row = 0; row < rows; ++row) {
      const Sample sample = data.sample(first + m * rows + row);
      if (row == 0) {
        const auto length = static_cast<std::int64_t>(sample.tokens.size());
        batch.tokens = at::empty({rows, length}, at::kLong);
        batch.targets = at::empty({rows, length}, at::kLong);
      }
      fill(batch, row, sample);
      out.num_targets += sample.num_targets();
    }
    // One document each: the whole microbatch can be worked on at once.
    const auto& starts = batch.documents.starts;
    if (std::all_of(starts.begin(), starts.end(), [](const auto& s) { return s.size() == 1; }))
      batch.documents = {};
    out.microbatches.push_back(std::move(batch));
  }
  // Every rank sees all of the data, so nobody has to be asked for the rest.
  for (std::int64_t n = first_sample; n < first_sample + num_sequences; ++n)
    if (n < first || n >= first + sequences) out.num_targets += data.sample(n).num_targets();
  return out;
}

}  // namespace sluice
