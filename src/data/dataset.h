// Training samples from a run of tokens, in an order that is a pure function of (seed, index): a
// run is resumed from its step number alone, and neither ranks nor schedule change what it sees.
// Step n of a run with global batch B takes the samples [n * B, (n + 1) * B); counting goes on
// over the epochs, each with its own order.
//
//   held out:  [ training tokens ............... | validation tokens ]   the last fraction of them
//   plain:     sample i is tokens [i*L, i*L + L], so neighbours share one token; documents run on
//   packed:    the same windows, with documents kept apart: segment_starts says where each begins
//              (no attention across, positions restart), and no token is trained to predict the
//              first one of the next document
//   masked:    either of them with tokens hidden; only those are predicted (data/masking.h)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sluice/data/masking.h"
#include "sluice/data/sample.h"
#include "sluice/data/token_source.h"

namespace sluice {

enum class Split { train, validation };

struct DatasetOptions {
  std::int64_t sequence_length = 0;  // L, at least 1
  bool packed = false;
  std::optional<MaskOptions> masks = {};  // where given, tokens of the data are below the mask
  Split split = Split::train;
  double validation_fraction = 0;  // of the tokens, from the end; 0 <= fraction < 1
  std::int64_t vocab_size = 0;     // tokens are below it
  bool shuffle = true;             // false: in the order of the data, again in every epoch
  std::uint64_t seed = 0;
};

// Safe to use from several threads at once.
class Dataset {
 public:
  // Throws UserError: 2 for a wrong option, 3 when the split holds no whole sample.
  Dataset(std::shared_ptr<const TokenSource> source, const DatasetOptions& options);

  std::int64_t num_samples() const { return num_samples_; }  // per epoch, at least 1
  std::int64_t num_tokens() const { return end_ - begin_; }  // of the split
  // Tokens of the longest document in a sample, or more; 0 where documents run on.
  std::int64_t longest_document() const;
  // Tokens, documents and a digest, of both splits: one line, the same for the same data. Of much
  // data, the digest is of stretches that lie evenly apart. May block on the disk.
  std::string identity() const;
  std::int64_t epoch_of(std::int64_t index) const { return index / num_samples_; }

  // The sample at `index` of the whole run. REQUIRES: index >= 0. May block on the disk. Throws
  // UserError (3) for a token outside the vocabulary or data that cannot be read any more.
  Sample sample(std::int64_t index) const;

 private:
  // `first` is the place of the sample's first token.
  void keep_documents_apart(Sample& sample, std::int64_t first) const;

  std::shared_ptr<const TokenSource> source_;
  DatasetOptions options_;
  std::int64_t begin_ = 0, end_ = 0;  // tokens of the split
  std::int64_t num_samples_ = 0;
};

}  // namespace sluice
