// Training samples from a run of tokens, in an order that is a pure function of (seed, index): a
// run is resumed from its step number alone, and neither ranks nor schedule change what it sees.
// Step n of a run with global batch B takes the samples [n * B, (n + 1) * B); counting goes on
// over the epochs, each with its own order.
//
//   held out:  [ training tokens ............... | validation tokens ]   the last fraction of them
//   plain:     sample i is tokens [i*L, i*L + L], so neighbours share one token; documents run on
//   documents: the same windows, with documents kept apart: segment_starts says where each begins
//              (no attention across, positions restart), and no token is trained to predict the
//              first one of the next document
//   sequences: sample i is one document, of its own length; L is the most that one may have.
//              Documents without tokens are none; the held-out fraction is of documents
//   masked:    any of them with tokens hidden; only those are predicted (data/masking.h)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/config/data_format.h"
#include "sluice/data/masking.h"
#include "sluice/data/sample.h"
#include "sluice/data/token_source.h"

namespace sluice {

enum class Split { train, validation };

struct DatasetOptions {
  std::int64_t sequence_length = 0;  // L, at least 1
  Packing packing = Packing::stream;
  Overlong overlong = Overlong::error;    // of documents of more than L tokens, as sequences
  std::optional<MaskOptions> masks = {};  // where given, tokens of the data are below the mask
  Split split = Split::train;
  double validation_fraction = 0;  // of the tokens or documents, from the end; 0 <= fraction < 1
  std::int64_t vocab_size = 0;     // tokens are below it
  bool shuffle = true;             // false: in the order of the data, again in every epoch
  std::uint64_t seed = 0;
};

// Safe to use from several threads at once.
class Dataset {
 public:
  // Throws UserError: 2 for a wrong option, 3 when the split holds no whole sample, or a document
  // that is too long to be one.
  Dataset(std::shared_ptr<const TokenSource> source, const DatasetOptions& options);

  std::int64_t num_samples() const { return num_samples_; }  // per epoch, at least 1
  std::int64_t num_tokens() const { return num_tokens_; }    // of the split, and of a sample
  // Tokens of the longest document in a sample, or more; 0 where documents run on.
  std::int64_t longest_document() const;
  // Tokens, documents and a digest, of both splits: one line, the same for the same data. Of much
  // data, the digest is of stretches that lie evenly apart. May block on the disk.
  std::string identity() const;
  std::int64_t epoch_of(std::int64_t index) const { return index / num_samples_; }
  // Says how many documents were dropped or truncated; "": none.
  const std::string& overlong_note() const { return overlong_note_; }

  // The sample at `index` of the whole run. REQUIRES: index >= 0. May block on the disk. Throws
  // UserError (3) for a token outside the vocabulary or data that cannot be read any more.
  Sample sample(std::int64_t index) const;
  // Its tokens, without reading them: of every sample L, or as many as its document has.
  std::int64_t length(std::int64_t index) const { return stretch_of(index).length; }
  // Those of the samples [first, end).
  std::vector<std::int64_t> lengths(std::int64_t first, std::int64_t end) const;

 private:
  // Where a sample's tokens are. `more`: one follows that is the last one's target.
  struct Stretch {
    std::int64_t first = 0, length = 0;
    bool more = false;
  };
  void count_windows();
  void list_documents();
  Stretch stretch_of(std::int64_t index) const;
  // `first` is the place of the sample's first token.
  void keep_documents_apart(Sample& sample, std::int64_t first) const;

  std::shared_ptr<const TokenSource> source_;
  DatasetOptions options_;
  std::int64_t begin_ = 0;               // the first token of the windows
  std::vector<std::int64_t> documents_;  // as sequences: which are samples
  std::int64_t num_samples_ = 0, num_tokens_ = 0;
  std::string overlong_note_;
};

}  // namespace sluice
