#include "sluice/data/dataset.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/text.h"
#include "sluice/data/permutation.h"

namespace sluice {
namespace {

constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 30;

// The held-out part of so many tokens or documents.
std::int64_t share_of(std::int64_t total, double fraction) {
  return std::min(total,
                  static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(total))));
}

// The least fraction that holds one of so many out, rounded up to a short number.
double least_fraction(std::int64_t total) {
  double unit = 1e-3;
  while (unit * static_cast<double>(total) > 0.1)
    unit /= 10;
  double fraction = std::ceil(1 / (unit * static_cast<double>(total)) - 1e-9) * unit;
  while (share_of(total, fraction) < 1)
    fraction += unit;
  return fraction;
}

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
  if (options.packing == Packing::sequences)
    list_documents();
  else
    count_windows();
}

void Dataset::count_windows() {
  const double fraction = options_.validation_fraction;
  const std::int64_t total = source_->num_tokens(), held_out = share_of(total, fraction);
  const bool train = options_.split == Split::train;
  begin_ = train ? 0 : total - held_out;
  num_tokens_ = train ? total - held_out : held_out;
  num_samples_ = (num_tokens_ - 1) / options_.sequence_length;
  if (num_samples_ >= 1) return;
  const std::string share = fraction > 0 ? fmt::format(" ({} of {} at validation fraction {})",
                                                       train ? "training data" : "validation data",
                                                       total, number(fraction))
                                         : std::string();
  throw bad_data("'{}' has {} tokens{}: a sample of sequence length {} needs {}", source_->name(),
                 num_tokens_, share, options_.sequence_length, options_.sequence_length + 1);
}

void Dataset::list_documents() {
  const std::vector<std::int64_t>& starts = source_->document_starts();
  for (std::size_t n = 0; n + 1 < starts.size(); ++n)
    if (starts[n + 1] > starts[n]) documents_.push_back(static_cast<std::int64_t>(n));
  const std::int64_t total = std::ssize(documents_);
  const std::int64_t held_out = share_of(total, options_.validation_fraction);
  if (options_.split == Split::train)
    documents_.resize(static_cast<std::size_t>(total - held_out));
  else
    documents_.erase(documents_.begin(), documents_.end() - held_out);

  const auto length_of = [&](std::int64_t document) {
    const auto n = static_cast<std::size_t>(document);
    return starts[n + 1] - starts[n];
  };
  const std::int64_t most = options_.sequence_length, all = std::ssize(documents_);
  const auto too_long = [&](std::int64_t document) { return length_of(document) > most; };
  const std::int64_t num_long = std::count_if(documents_.begin(), documents_.end(), too_long);
  if (num_long > 0) {
    const std::int64_t first = *std::find_if(documents_.begin(), documents_.end(), too_long);
    switch (options_.overlong) {
      case Overlong::error:
        throw bad_data(
            "'{}' document {} (they count from 0) has {} tokens: training.sequence_length is {}; "
            "raise it, or set "
            "data.overlong to drop ({} of {} documents would be left out) or to truncate (they "
            "would keep their first {} tokens)",
            source_->name(), first, length_of(first), most, num_long, all, most);
      case Overlong::drop: std::erase_if(documents_, too_long); break;
      case Overlong::truncate: break;
    }
    overlong_note_ = fmt::format("{} of {} have more than {} tokens and were {}", num_long,
                                 counted(all, "document"), most,
                                 options_.overlong == Overlong::drop ? "dropped" : "truncated");
  }
  num_samples_ = std::ssize(documents_);
  for (const std::int64_t document : documents_)
    num_tokens_ += std::min(length_of(document), most);
  if (num_samples_ >= 1) return;
  const bool train = options_.split == Split::train;
  std::string remedy = "add documents";
  if (!overlong_note_.empty())
    remedy = "raise training.sequence_length, or set data.overlong = truncate";
  else if (!train && total > 1)
    remedy =
        fmt::format("raise data.validation_fraction to at least {}, or set validation.interval = 0",
                    number(least_fraction(total)));
  throw bad_data("'{}' has {}, of which the {} data holds none{}: {}", source_->name(),
                 counted(total, "document"), train ? "training" : "validation",
                 overlong_note_.empty() ? "" : " (" + overlong_note_ + ")", remedy);
}

std::int64_t Dataset::longest_document() const {
  if (options_.packing == Packing::stream) return 0;
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

Dataset::Stretch Dataset::stretch_of(std::int64_t index) const {
  SLUICE_CHECK(index >= 0, "sample {}", index);
  std::int64_t place = index % num_samples_;
  if (options_.shuffle)
    place = Permutation(num_samples_, options_.seed, static_cast<std::uint64_t>(epoch_of(index)))
                .at(place);
  const std::int64_t most = options_.sequence_length;
  if (options_.packing != Packing::sequences) return {begin_ + place * most, most, true};
  const auto document = static_cast<std::size_t>(documents_[static_cast<std::size_t>(place)]);
  const std::int64_t first = source_->document_starts()[document];
  const std::int64_t length = source_->document_starts()[document + 1] - first;
  return {first, std::min(length, most), length > most};
}

std::vector<std::int64_t> Dataset::lengths(std::int64_t first, std::int64_t end) const {
  std::vector<std::int64_t> out;
  for (std::int64_t n = first; n < end; ++n)
    out.push_back(length(n));
  return out;
}

Sample Dataset::sample(std::int64_t index) const {
  const Stretch stretch = stretch_of(index);
  Sample sample;
  sample.tokens.resize(static_cast<std::size_t>(stretch.length + (stretch.more ? 1 : 0)));
  source_->read(stretch.first, sample.tokens);
  const std::int64_t limit = options_.masks ? options_.masks->mask_token : options_.vocab_size;
  for (std::size_t n = 0; n < sample.tokens.size(); ++n)
    if (sample.tokens[n] >= limit)
      throw bad_data(
          "'{}' token {} is {}: the vocabulary has {} tokens{}; raise model.vocab_size, or use the "
          "model's tokenizer",
          source_->name(), stretch.first + static_cast<std::int64_t>(n), sample.tokens[n],
          options_.vocab_size, options_.masks ? fmt::format(", and {} is the mask", limit) : "");
  sample.targets.assign(sample.tokens.begin() + 1, sample.tokens.end());
  if (stretch.more)
    sample.tokens.pop_back();
  else
    sample.targets.push_back(kNoTarget);
  sample.segment_starts = {0};
  if (options_.packing == Packing::documents) keep_documents_apart(sample, stretch.first);
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
