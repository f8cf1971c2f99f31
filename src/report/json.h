// JSON as results are written: each field of the object on a line, what is inside a field without
// spaces, numbers as people write them (number() of base/text.h).
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sluice {

using Json = nlohmann::ordered_json;

class JsonObject {
 public:
  void add(std::string_view name, const Json& value);
  // For what is too large to be held as Json: the caller appends the value to what this returns.
  std::string& begin(std::string_view name);
  std::string take();  // the whole object and a line end

 private:
  std::string out_ = "{\n";
};

void append_json(std::string& out, const Json& value);

// A list with an element per line; append(out, n) writes the n-th.
template <typename Append>
void append_rows(std::string& out, std::size_t count, Append append) {
  out += "[";
  for (std::size_t n = 0; n < count; ++n) {
    out += n ? ",\n    " : "\n    ";
    append(out, n);
  }
  out += "\n  ]";
}

}  // namespace sluice
