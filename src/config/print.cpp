// Configurations as TOML.
#include <fmt/format.h>

#include "sluice/base/text.h"
#include "sluice/config/schema.h"

namespace sluice {
namespace {

constexpr std::size_t kCommentColumn = 48;

// The shortest digits that read back as the same number, and look like a real.
std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string numbers_text(const std::vector<double>& numbers) {
  if (numbers.size() == 1) return real_text(numbers[0]);
  std::vector<std::string> texts;
  for (const double value : numbers)
    texts.push_back(real_text(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string print(const Config& config, const std::map<std::string, std::string>* origins) {
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : config_schema()) {
    if (key.section != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section);
      section = key.section;
    }
    std::string line = fmt::format("{} = {}", key.name, toml_value(key.get(config)));
    if (origins) {
      const auto origin = origins->find(key.full_name());
      line = fmt::format("{:<{}}  # {}", line, kCommentColumn,
                         origin == origins->end() ? "default" : origin->second);
    }
    text += line + '\n';
  }
  return text;
}

}  // namespace

std::string toml_quote(std::string_view text) {
  std::string out;
  for (const char c : json_quote(text))
    if (c == '\x7f')
      out += "\\u007f";  // legal in JSON, not in TOML
    else
      out += c;
  return out;
}

std::string toml_value(const ConfigValue& value) {
  switch (static_cast<ValueKind>(value.index())) {
    case ValueKind::boolean: return std::get<bool>(value) ? "true" : "false";
    case ValueKind::whole: return std::to_string(std::get<std::int64_t>(value));
    case ValueKind::real: return real_text(std::get<double>(value));
    case ValueKind::text: return toml_quote(std::get<std::string>(value));
    case ValueKind::numbers: return numbers_text(std::get<std::vector<double>>(value));
    case ValueKind::rule: {
      const auto& given = std::get<RuleText>(value);
      return given.rule.empty() ? fmt::format("[{}]", fmt::join(given.list, ", "))
                                : toml_quote(given.rule);
    }
  }
  return "";
}

std::string print_config(const LoadedConfig& config) {
  return print(config.values, &config.origins);
}

std::string config_text(const Config& config) { return print(config, nullptr); }

}  // namespace sluice
