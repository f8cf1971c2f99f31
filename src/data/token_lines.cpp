#include "sluice/data/token_lines.h"

#include "sluice/base/text.h"
#include "sluice/data/bytes.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxLine = 64;

class Lines {
 public:
  Lines(const std::string& path, std::int64_t vocab_size) : path_(path), vocab_size_(vocab_size) {}

  void take(std::string_view piece) {
    for (const char c : piece) {
      if (c == '\n')
        end_line();
      else if (line_.size() <= kMaxLine)
        line_ += c;
    }
  }
  void end_line() {
    ++number_;
    const std::string_view text = trim(line_);
    if (!text.empty()) {
      const auto token = parse_int(text);
      if (!token || *token < 0 || *token >= vocab_size_)
        throw bad_data(
            "{}:{}: token {}: needs one number per line, from 0 to {} in this model's vocabulary",
            path_, number_, json_quote(text), vocab_size_ - 1);
      tokens_.push_back(static_cast<std::int32_t>(*token));
    }
    line_.clear();
  }
  std::vector<std::int32_t> end() {
    if (!line_.empty()) end_line();
    if (tokens_.empty()) throw bad_data("{} holds no tokens: needs one number per line", path_);
    return std::move(tokens_);
  }

 private:
  const std::string& path_;
  std::int64_t vocab_size_;
  std::int64_t number_ = 0;  // of the line
  std::string line_;         // its beginning
  std::vector<std::int32_t> tokens_;
};

}  // namespace

std::unique_ptr<TokenSource> read_token_lines(const std::string& path, std::int64_t vocab_size) {
  const std::unique_ptr<Bytes> file = open_file(path);
  ByteStream stream(*file);
  Lines lines(path, vocab_size);
  for (std::string_view piece = stream.next(); !piece.empty(); piece = stream.next())
    lines.take(piece);
  std::vector<std::int32_t> tokens = lines.end();
  const auto count = static_cast<std::int64_t>(tokens.size());
  return memory_source(std::move(tokens), {0, count}, path);
}

}  // namespace sluice
