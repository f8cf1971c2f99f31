#include "sluice/report/json.h"

#include "sluice/base/text.h"

namespace sluice {

void append_json(std::string& out, const Json& value) {
  bool first = true;
  const auto next = [&] {
    if (!first) out += ",";
    first = false;
  };
  switch (value.type()) {
    case Json::value_t::object:
      out += "{";
      for (const auto& [name, element] : value.items()) {
        next();
        out += json_quote(name) + ":";
        append_json(out, element);
      }
      out += "}";
      break;
    case Json::value_t::array:
      out += "[";
      for (const Json& element : value) {
        next();
        append_json(out, element);
      }
      out += "]";
      break;
    case Json::value_t::string: out += json_quote(value.get_ref<const std::string&>()); break;
    case Json::value_t::number_float: out += number(value.get<double>()); break;
    default: out += value.dump();
  }
}

std::string& JsonObject::begin(std::string_view name) {
  if (out_.size() > 2) out_ += ",\n";
  out_ += "  " + json_quote(name) + ": ";
  return out_;
}

void JsonObject::add(std::string_view name, const Json& value) { append_json(begin(name), value); }

std::string JsonObject::take() {
  out_ += "\n}\n";
  return std::move(out_);
}

}  // namespace sluice
