#include "sluice/data/dataset.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/text.h"
#include "sluice/data/permutation.h"

namespace sluice {
namespace {

constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 30;

}  // namespace

std::int64_t Sample::num_targets() const {
  return static_cast<std::int64_t>(targets.size()) -
         std::count(targets.begin(), targets.end(), kNoTarget);
}

Dataset::Dataset(std::shared_ptr<const TokenSource> source, const DatasetOptions& options)
    : source_(std::move(source)), options_(options) {
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1))
    throw user_error("the validation fraction is {}: needs at least 0 and less than 1", fraction);
  if (options.sequence_length < 1 || options.sequence_length > kMaxSequenceLength)
    throw user_error("the sequence length is {}: needs 1 to {}", options.sequence_length,
                     kMaxSequenceLength);
  if (options.vocab_size < 1)
    throw user_error("the vocabulary has {} tokens: needs at least 1", options.vocab_size);
  const std::int64_t total = source_->num_tokens();
  const auto held_out =
      std::min(total, static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(total))));
  const bool train = options.split == Split::train;
  begin_ = train ? 0 : total - held_out;
  end_ = train ? total - held_out : total;
  num_samples_ = (num_tokens() - 1) / options.sequence_length;
  if (num_samples_ < 1) {
    const std::string share =
        fraction > 0
            ? fmt::format(" ({} of {} at validation fraction {})",
                          train ? "training data" : "validation data", total, number(fraction))
            : std::string();
    throw bad_data("'{}' has {} tokens{}: a sample of sequence length {} needs {}", source_->name(),
                   num_tokens(), share, options.sequence_length, options.sequence_length + 1);
  }
}

std::int64_t Dataset::longest_document() const {
  if (!options_.packed) return 0;
  const std::vector<std::int64_t>& starts = source_->document_starts();
  std::int64_t longest = 0;
  for (std::size_t n = 0; n + 1 < starts.size(); ++n)
    longest = std::max(longest, starts[n + 1] - starts[n]);
  return std::min(longest, options_.sequence_length);
}

std::string Dataset::identity() const {
  constexpr std::int64_t kStretches = 256, kStretch = 16'384;
  const std::int64_t total = source_->num_tokens();
  const std::vector<std::int64_t>& starts = source_->document_starts();
  std::vector<std::uint64_t> digests = {
      hash_of({reinterpret_cast<const char*>(starts.data()), starts.size() * sizeof starts[0]})};
  // Evenly apart from the first to the last; where there are no more, they cover everything.
  const std::int64_t apart = std::max(kStretch, (total - kStretch) / (kStretches - 1));
  std::vector<std::int32_t> tokens;
  for (std::int64_t begin = 0; begin < total; begin += apart) {
    tokens.resize(static_cast<std::size_t>(std::min(kStretch, total - begin)));
    source_->read(begin, tokens);
    digests.push_back(
        hash_of({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]}));
  }
  return fmt::format(
      "{} in {} with the digest {:016x}", counted(total, "token"),
      counted(std::ssize(starts) - 1, "document"),
      hash_of({reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof digests[0]}));
}

Sample Dataset::sample(std::int64_t index) const {
  SLUICE_CHECK(index >= 0, "sample {}", index);
  const std::int64_t epoch = epoch_of(index), length = options_.sequence_length;
  std::int64_t place = index % num_samples_;
  if (options_.shuffle)
    place = Permutation(num_samples_, options_.seed, static_cast<std::uint64_t>(epoch)).at(place);

  const std::int64_t first = begin_ + place * length;
  Sample sample;
  sample.tokens.resize(static_cast<std::size_t>(length) + 1);
  source_->read(first, sample.tokens);
  const std::int64_t limit = options_.masks ? options_.masks->mask_token : options_.vocab_size;
  for (std::size_t n = 0; n < sample.tokens.size(); ++n)
    if (sample.tokens[n] >= limit)
      throw bad_data(
          "'{}' token {} is {}: the vocabulary has {} tokens{}; raise model.vocab_size, or use the "
          "model's tokenizer",
          source_->name(), first + static_cast<std::int64_t>(n), sample.tokens[n],
          options_.vocab_size, options_.masks ? fmt::format(", and {} is the mask", limit) : "");
  sample.targets.assign(sample.tokens.begin() + 1, sample.tokens.end());
  sample.tokens.pop_back();
  sample.segment_starts = {0};
  if (options_.packed) keep_documents_apart(sample, first);
  return options_.masks ? mask_sample(std::move(sample), index, *options_.masks) : sample;
}

void Dataset::keep_documents_apart(Sample& sample, std::int64_t first) const {
  const auto length = options_.sequence_length;
  const std::vector<std::int64_t>& starts = source_->document_starts();
  auto start = std::upper_bound(starts.begin(), starts.end(), first);
  for (; start != starts.end() && *start <= first + length; ++start) {
    const auto offset = static_cast<std::int32_t>(*start - first);
    sample.targets[static_cast<std::size_t>(offset) - 1] = kNoTarget;
    // Documents without tokens begin where their follower does.
    if (offset < length && offset != sample.segment_starts.back())
      sample.segment_starts.push_back(offset);
  }
}

}  // namespace sluice
