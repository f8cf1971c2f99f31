#include "sluice/data/token_source.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "sluice/base/text.h"
#include "sluice/data/indexed.h"
#include "sluice/data/tokenizer.h"

namespace sluice {
namespace {

constexpr std::array<std::pair<std::string_view, DataFormat>, 5> kFormats = {
    {{"auto", DataFormat::automatic},
     {"text", DataFormat::text},
     {"jsonl", DataFormat::jsonl},
     {"bytes", DataFormat::bytes},
     {"megatron", DataFormat::megatron}}};

// Token is the narrowest type that holds every token: two bytes for a corpus of bytes.
template <typename Token>
class MemorySource : public TokenSource {
 public:
  MemorySource(std::vector<Token> tokens, std::vector<std::int64_t> starts, std::string name)
      : tokens_(std::move(tokens)), starts_(std::move(starts)), name_(std::move(name)) {
    SLUICE_CHECK(!starts_.empty() && starts_.back() == num_tokens() &&
                     std::is_sorted(starts_.begin(), starts_.end()),
                 "{} document boundaries for {} tokens", starts_.size(), tokens_.size());
  }
  const std::string& name() const override { return name_; }
  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  const std::vector<std::int64_t>& document_starts() const override { return starts_; }
  // Only the byte tokenizer's tokens are kept in two bytes.
  std::int32_t end_of_document() const override {
    return std::is_same_v<Token, std::uint16_t> ? kEndOfDocument : -1;
  }
  void read(std::int64_t begin, std::span<std::int32_t> out) const override {
    SLUICE_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= num_tokens(),
                 "tokens {} + {} of {}", begin, out.size(), num_tokens());
    std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
  }

 private:
  std::vector<Token> tokens_;
  std::vector<std::int64_t> starts_;
  std::string name_;
};

class IndexedSource : public TokenSource {
 public:
  explicit IndexedSource(const std::string& prefix) : name_(prefix), tokens_(prefix) {}
  const std::string& name() const override { return name_; }
  std::int64_t num_tokens() const override { return tokens_.index().num_tokens; }
  const std::vector<std::int64_t>& document_starts() const override {
    return tokens_.index().document_starts;
  }
  void read(std::int64_t begin, std::span<std::int32_t> out) const override {
    tokens_.read(begin, out);
  }

 private:
  std::string name_;
  IndexedTokens tokens_;
};

class Collector : public DocumentSink {
 public:
  void append(std::string_view bytes) override {
    for (const char c : bytes)
      tokens.push_back(static_cast<unsigned char>(c));
  }
  void end_document() override {
    tokens.push_back(static_cast<std::uint16_t>(kEndOfDocument));
    starts.push_back(static_cast<std::int64_t>(tokens.size()));
  }

  std::vector<std::uint16_t> tokens;
  std::vector<std::int64_t> starts = {0};
};

// A word may cross the end of a piece, so a document is held whole.
class WordCollector : public DocumentSink {
 public:
  explicit WordCollector(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void append(std::string_view bytes) override { text_ += bytes; }
  void end_document() override {
    const std::vector<std::int32_t> words = tokenizer_.encode(text_);
    tokens.insert(tokens.end(), words.begin(), words.end());
    if (tokenizer_.end_of_document() >= 0) tokens.push_back(tokenizer_.end_of_document());
    starts.push_back(static_cast<std::int64_t>(tokens.size()));
    text_.clear();
  }

  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts = {0};

 private:
  const BpeTokenizer& tokenizer_;
  std::string text_;
};

bool looks_indexed(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".idx") || path.ends_with(".bin") ||
         std::filesystem::exists(path + ".idx", ignored);
}

}  // namespace

std::unique_ptr<TokenSource> memory_source(std::vector<std::int32_t> tokens,
                                           std::vector<std::int64_t> document_starts,
                                           std::string name) {
  return std::make_unique<MemorySource<std::int32_t>>(std::move(tokens), std::move(document_starts),
                                                      std::move(name));
}

DataFormat parse_data_format(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [text, format] : kFormats) {
    if (text == name) return format;
    known.emplace_back(text);
  }
  const std::string nearest = nearest_name(name, known);
  throw user_error("the data format is '{}'{}; needs one of {}", name,
                   nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest),
                   join(known, ", "));
}

std::string indexed_prefix(const std::string& path) {
  if (path.ends_with(".idx") || path.ends_with(".bin")) return path.substr(0, path.size() - 4);
  return path;
}

std::unique_ptr<TokenSource> open_token_source(const std::string& path, DataFormat format,
                                               const BpeTokenizer* tokenizer) {
  if (format == DataFormat::megatron || (format == DataFormat::automatic && looks_indexed(path)))
    return std::make_unique<IndexedSource>(indexed_prefix(path));
  DocumentOptions options;
  if (format == DataFormat::text) options.format = TextFormat::text;
  if (format == DataFormat::jsonl) options.format = TextFormat::jsonl;
  if (format == DataFormat::bytes) options.format = TextFormat::bytes;
  SLUICE_CHECK(format != DataFormat::bytes || !tokenizer, "raw bytes of {} with a tokenizer", path);
  if (tokenizer) {
    WordCollector words(*tokenizer);
    read_documents(document_files(path), options, words);
    return memory_source(std::move(words.tokens), std::move(words.starts), path);
  }
  Collector collector;
  read_documents(document_files(path), options, collector);
  return std::make_unique<MemorySource<std::uint16_t>>(std::move(collector.tokens),
                                                       std::move(collector.starts), path);
}

}  // namespace sluice
