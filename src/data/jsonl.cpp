// One line of JSONL. Events instead of a tree: the JSON library would keep the last of duplicate
// keys silently, accept any depth, and copy what nobody reads.
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "sluice/data/documents.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 256;

class TextFinder : public nlohmann::json_sax<Json> {
 public:
  explicit TextFinder(const std::string& wanted) : wanted_(wanted) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& text) override {
    if (!at_wanted()) return value("a string");
    text_ = std::move(text);
    expecting_ = false;
    return true;
  }
  bool start_object(std::size_t) override { return value("an object") && deeper(); }
  bool start_array(std::size_t) override { return value("a list") && deeper(); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ != 1 || name != wanted_) return true;
    if (found_) return stop(fmt::format("the key {} appears twice", json_quote(wanted_)));
    found_ = expecting_ = true;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while ...":
    // the line is always 1, and what was last read may be megabytes of it.
    std::string cause = error.what();
    for (const std::string_view end_of_prefix : {"] ", ": "})
      if (const auto at = cause.find(end_of_prefix); at != std::string::npos)
        cause.erase(0, at + end_of_prefix.size());
    if (const auto last = cause.find("; last read"); last != std::string::npos) cause.resize(last);
    if (cause.size() > 160) cause.resize(160);
    return stop(fmt::format("column {}: not JSON: {}", position, cause));
  }

  bool found() const { return found_; }
  const std::string& problem() const { return problem_; }
  std::string take_text() { return std::move(text_); }

 private:
  bool at_wanted() const { return expecting_ && depth_ == 1; }
  bool stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool deeper() {
    if (++depth_ <= kMaxDepth) return true;
    return stop(fmt::format("nested more than {} levels deep", kMaxDepth));
  }
  bool value(const char* kind) {
    if (depth_ == 0 && std::string_view(kind) != "an object")
      return stop(fmt::format("the line is {}: needs an object", kind));
    if (at_wanted())
      return stop(fmt::format("{} is {}: needs a string", json_quote(wanted_), kind));
    return true;
  }

  const std::string& wanted_;
  std::string text_;
  std::string problem_;
  int depth_ = 0;
  bool found_ = false;
  bool expecting_ = false;  // the next value belongs to the wanted key
};

}  // namespace

std::string jsonl_text(std::string_view line, const std::string& key, const std::string& where) {
  // The library would skip it without a word; only the first line of a file may have one, and it
  // was taken off there.
  if (line.starts_with("\xEF\xBB\xBF"))
    throw bad_data("{}: begins with a byte order mark: allowed only at the start of a file", where);
  TextFinder finder(key);
  const bool whole = Json::sax_parse(line.begin(), line.end(), &finder);
  if (!whole) throw bad_data("{}: {}", where, finder.problem());
  if (!finder.found())
    throw bad_data("{}: no key {}: sluice data --key NAME names the key that holds the text", where,
                   json_quote(key));
  return finder.take_text();
}

}  // namespace sluice
