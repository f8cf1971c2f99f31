#include "sluice/data/bpe.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

namespace sluice {
namespace {

constexpr std::int32_t kGone = -1;

// A word being merged: its tokens, each with its neighbours.
struct Symbol {
  std::int32_t token;
  std::int32_t before, after;  // -1: none
};

// A merge that was possible when it was seen; the lowest rank first, then the leftmost.
struct Candidate {
  std::int32_t rank;
  std::int32_t left;
  std::int32_t right;
  std::int32_t token;
  std::int32_t left_token, right_token;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

// Cuts `text` at the added tokens, calling back with what lies between them and with the tokens.
// The longest of those that begin at the same place counts.
template <typename List, typename Text, typename Token>
void cut_at(std::string_view text, const List& added, const Text& on_text, const Token& on_token) {
  std::array<bool, 256> begins = {};  // so that most places need no look at the list
  for (const auto& candidate : added)
    begins[static_cast<unsigned char>(candidate.content.front())] = true;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = !begins[static_cast<unsigned char>(text[at])]
                           ? added.end()
                           : std::find_if(added.begin(), added.end(), [&](const auto& candidate) {
                               return text.substr(at).starts_with(candidate.content);
                             });
    if (found == added.end()) {
      ++at;
      continue;
    }
    if (at > done) on_text(text.substr(done, at - done));
    on_token(found->token);
    done = at += found->content.size();
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> out;
  const auto put = [&](std::int32_t token) { out.push_back(token); };
  cut_at(
      text, added_first_,
      [&](std::string_view rest) {
        cut_at(
            rest, added_then_, [&](std::string_view words) { encode_words(words, out); }, put);
      },
      put);
  return out;
}

void BpeTokenizer::encode_words(std::string_view text, std::vector<std::int32_t>& out) const {
  while (!text.empty()) {
    const std::string_view word = first_word(text, pattern_);
    encode_word(word, out);
    text.remove_prefix(word.size());
  }
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (whole_words_first_)
    if (const auto whole = words_.find(std::string(word)); whole != words_.end()) {
      out.push_back(whole->second);
      return;
    }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({byte_tokens_[static_cast<unsigned char>(c)], at - 1, at + 1});
  }
  symbols.back().after = -1;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto symbol = [&](std::int32_t at) -> Symbol& {
    return symbols[static_cast<std::size_t>(at)];
  };
  const auto consider = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0) return;
    const std::int32_t a = symbol(left).token, b = symbol(right).token;
    const auto found =
        merges_.find(static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b));
    if (found != merges_.end())
      candidates.push({found->second.rank, left, right, found->second.token, a, b});
  };
  for (std::int32_t at = 0; at + 1 < static_cast<std::int32_t>(symbols.size()); ++at)
    consider(at, at + 1);
  while (!candidates.empty()) {
    const Candidate merge = candidates.top();
    candidates.pop();
    Symbol& left = symbol(merge.left);
    Symbol& right = symbol(merge.right);
    if (left.token != merge.left_token || right.token != merge.right_token ||
        left.after != merge.right)
      continue;  // one of them was merged since
    left.token = merge.token;
    left.after = right.after;
    if (right.after >= 0) symbol(right.after).before = merge.left;
    right.token = kGone;
    consider(left.before, merge.left);
    consider(merge.left, left.after);
  }
  for (std::int32_t at = 0; at >= 0; at = symbol(at).after)
    out.push_back(symbol(at).token);
}

std::string_view BpeTokenizer::bytes_of(std::int32_t token) const {
  if (token < 0 || token >= vocab_size()) return "";
  return tokens_[static_cast<std::size_t>(token)];
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens)
    text += bytes_of(token);
  return text;
}

}  // namespace sluice
