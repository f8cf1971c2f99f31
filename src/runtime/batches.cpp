#include "sluice/runtime/batches.h"

#include <algorithm>

#include "sluice/base/error.h"

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

void count(const Sample& sample, GlobalBatch& batch) {
  batch.num_tokens += std::ssize(sample.tokens);
  batch.num_targets += sample.num_targets();
  const auto& starts = sample.segment_starts;
  for (std::size_t d = 0; d < starts.size(); ++d) {
    const double end =
        d + 1 < starts.size() ? starts[d + 1] : static_cast<double>(sample.tokens.size());
    batch.squared_lengths += (end - starts[d]) * (end - starts[d]);
  }
}

// A rank's part of its group's row: sequences one after the other, each a document of its own. What
// pads the row are documents, too, none longer than the sequences: positions end where theirs do.
Microbatch part_of_row(const std::vector<Sample>& samples, const TokenShare& share,
                       TensorGroup* group) {
  Microbatch batch;
  const std::int64_t padded = share.tokens * share.degree;
  batch.tokens = at::zeros({1, padded}, at::kLong);
  batch.targets = at::full({1, padded}, std::int64_t{kNoTarget}, at::kLong);
  std::vector<std::int64_t>& starts = batch.documents.starts.emplace_back();
  std::int64_t place = 0, longest = 0;
  for (const Sample& sample : samples) {
    starts.push_back(place);
    longest = std::max(longest, std::ssize(sample.tokens));
    std::copy(sample.tokens.begin(), sample.tokens.end(),
              batch.tokens.mutable_data_ptr<std::int64_t>() + place);
    std::copy(sample.targets.begin(), sample.targets.end(),
              batch.targets.mutable_data_ptr<std::int64_t>() + place);
    place += std::ssize(sample.tokens);
  }
  for (; place < padded; place += longest)
    starts.push_back(place);
  if (share.degree == 1) return batch;
  SLUICE_CHECK(group && group->size() == share.degree, "a group of {} ranks for {}",
               group ? group->size() : 0, share.degree);
  batch.group = group;
  for (at::Tensor* tensor : {&batch.tokens, &batch.targets})
    *tensor = tensor->narrow(1, group->rank() * share.tokens, share.tokens).contiguous();
  return batch;
}

}  // namespace

GlobalBatch load_batch(const Dataset& data, const BatchRange& range, int num_microbatches,
                       const DataShare& share, const SliceBounds& bounds) {
  SLUICE_CHECK(range.first < range.end, "samples {} to {}", range.first, range.end);
  GlobalBatch out;
  const std::int64_t sequences = range.sequences / share.count;
  const std::int64_t first = range.first + share.index * sequences;
  const std::int64_t rows = sequences / num_microbatches;
  for (int m = 0; m < num_microbatches; ++m) {
    Microbatch batch;
    batch.bounds = bounds;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t number = first + m * rows + row;
      // The last sample stands in for those that are missing: padding meets no numbers that the
      // samples do not meet themselves.
      Sample sample = data.sample(std::min(number, range.end - 1));
      if (number < range.end)
        count(sample, out);
      else
        std::fill(sample.targets.begin(), sample.targets.end(), kNoTarget);
      if (row == 0) {
        const auto length = static_cast<std::int64_t>(sample.tokens.size());
        batch.tokens = at::empty({rows, length}, at::kLong);
        batch.targets = at::empty({rows, length}, at::kLong);
      }
      fill(batch, row, sample);
    }
    // One document each: the whole microbatch can be worked on at once.
    const auto& starts = batch.documents.starts;
    if (std::all_of(starts.begin(), starts.end(), [](const auto& s) { return s.size() == 1; }))
      batch.documents = {};
    out.microbatches.push_back(std::move(batch));
  }
  // Every rank sees all of the data, so nobody has to be asked for the rest.
  for (std::int64_t n = range.first; n < std::min(range.first + range.sequences, range.end); ++n)
    if (n < first || n >= first + sequences) count(data.sample(n), out);
  return out;
}

std::vector<std::int64_t> lengths_of(const Dataset& data, const BatchRange& range) {
  SLUICE_CHECK(range.first < range.end, "samples {} to {}", range.first, range.end);
  return data.lengths(range.first, std::min(range.first + range.sequences, range.end));
}

GlobalBatch load_sequences(const Dataset& data, const BatchRange& range, const BatchPlan& plan,
                           const SequenceShare& share) {
  const std::vector<std::int64_t> lengths = lengths_of(data, range);
  GlobalBatch out;
  for (const std::vector<SequenceGroup>& groups : plan.microbatches) {
    std::vector<Sample> own;
    TokenShare tokens;
    for (const SequenceGroup& group : groups) {
      const bool mine = group.holds(share.rank);
      if (mine) tokens = share_of(group, lengths, share.tensor);
      for (const std::int64_t sequence : group.sequences) {
        Sample sample = data.sample(range.first + sequence);
        count(sample, out);
        if (mine) own.push_back(std::move(sample));
      }
    }
    out.microbatches.push_back(
        part_of_row(own, tokens, tokens.degree > 1 ? &share.groups->at(tokens.degree) : nullptr));
  }
  return out;
}

}  // namespace sluice
