// A reader for JSON of a known form from a source that is not trusted. The JSON library accepts
// duplicate keys, any depth and numbers it cannot hold, and needs many times the text in memory;
// this one walks over the text once, calls back for each member, and its depth is that of the
// caller's code. Whatever differs from the form is a UserError bad_data with its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

class JsonScanner {
 public:
  // `text` and `path` (for errors only) must outlive it.
  JsonScanner(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  // `where` names, in errors, what is being read.
  template <typename Member>
  void object(std::string_view where, Member member);  // member(key), behind each `"key":`
  template <typename Element>
  void array(std::string_view where, Element element);  // element(), before each element
  std::uint64_t integer(std::string_view where);        // no sign, no fraction, no overflow
  std::string string(std::string_view where);           // UTF-8, escapes resolved, at most 16 MiB
  void expect_end();                                    // nothing but white space is left

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void skip_blanks();
  bool take(char c);
  void expect(char c, std::string_view where);
  std::string here() const;
  unsigned hex4();
  void escape(std::string& out);

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

// UTF-8 `text` quoted for a message, cut to a length that fits a line.
std::string shown_text(std::string_view text);

template <typename Member>
void JsonScanner::object(std::string_view where, Member member) {
  expect('{', where);
  if (take('}')) return;
  do {
    const std::string key = string(where);
    expect(':', where);
    member(key);
  } while (take(','));
  expect('}', where);
}

template <typename Element>
void JsonScanner::array(std::string_view where, Element element) {
  expect('[', where);
  if (take(']')) return;
  do {
    element();
  } while (take(','));
  expect(']', where);
}

}  // namespace sluice
