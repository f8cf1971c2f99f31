// Defaults, then the TOML file, then the flags.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "sluice/base/error.h"
#include "sluice/base/storage_error.h"
#include "sluice/base/text.h"
#include "sluice/config/schema.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxFileBytes = 256 << 10;
// toml++ limits the depth of values but not of dotted keys, and walks what it built recursively.
// Counting characters is crude, but leaves room for any path.
constexpr int kMaxDotsPerLine = 400;
constexpr int kMaxBraces = 16;
constexpr std::size_t kMaxShown = 120;  // bytes of the user's text in a message

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0 || length == text.npos) return false;
    text.remove_prefix(length);
  }
  return true;
}

// The user's text on one line of bounded length, whatever it is made of.
std::string shortened(std::string_view text, std::size_t most = kMaxShown) {
  const bool cut = text.size() > most;
  if (cut) {
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80)
      --most;
    text = text.substr(0, most);
  }
  return printable(text) + (cut ? "..." : "");
}

std::string_view trim_quotes(std::string_view text) {
  const bool quoted = text.size() >= 2 && (text[0] == '"' || text[0] == '\'');
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// A value as read from somewhere: nothing when it is not of the key's kind.
struct Reading {
  const ConfigKey& key;
  std::optional<ConfigValue> value;
  std::string where;   // "a.toml:3:10: model.layers" or "--model.layers"
  std::string shown;   // the value as the user wrote it, printable
  std::string origin;  // as in LoadedConfig
};

// One of the two places where a key can be set: once in a file, and any number of times in flags,
// of which the last wins.
class Source {
 public:
  Source(LoadedConfig& config, bool once) : config_(config), once_(once) {}

  void store(Reading reading) {
    const ConfigKey& key = reading.key;
    const std::string name = key.full_name();
    const auto [before, first] = seen_.emplace(name, reading.where);
    if (!first && once_)
      throw user_error("{} is given twice, first as {}; remove one of them", reading.where,
                       before->second);
    if (!reading.value || !accept_value(key, *reading.value)) {
      const std::vector<std::string> choices(key.choices.begin(), key.choices.end());
      const std::string word(trim_quotes(reading.shown));
      const std::string near = nearest_name(word, choices);
      throw user_error("{} is {}: needs {}{}", reading.where, reading.shown, allowed_values(key),
                       near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
    }
    key.set(config_.values, *reading.value);
    config_.origins[name] = reading.origin;
  }

 private:
  LoadedConfig& config_;
  const bool once_;
  std::map<std::string, std::string> seen_;  // key to `where`
};

// ---- the file

std::optional<int> to_int(std::int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    return std::nullopt;
  return static_cast<int>(value);
}

std::optional<std::vector<int>> list_of(const toml::node& node) {
  const toml::array* array = node.as_array();
  if (!array) return std::nullopt;
  std::vector<int> list;
  for (const toml::node& element : *array) {
    const auto value = element.value_exact<std::int64_t>();
    const auto whole = value ? to_int(*value) : std::nullopt;
    if (!whole) return std::nullopt;
    list.push_back(*whole);
  }
  return list;
}

std::optional<double> number_of(const toml::node& node) {
  if (const auto whole = node.value_exact<std::int64_t>()) return static_cast<double>(*whole);
  return node.value_exact<double>();  // NaN and infinities are in no range
}

std::optional<std::vector<double>> numbers_of(const toml::node& node) {
  std::vector<double> numbers;
  const auto add = [&](const toml::node& element) {
    const auto value = number_of(element);
    if (value) numbers.push_back(*value);
    return value.has_value();
  };
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& element : *array)
      if (!add(element)) return std::nullopt;
  } else if (!add(node)) {
    return std::nullopt;
  }
  return numbers;
}

std::optional<ConfigValue> value_of(ValueKind kind, const toml::node& node) {
  const auto text = node.value_exact<std::string>();
  if (text && text->find('\0') != text->npos) return std::nullopt;
  switch (kind) {
    case ValueKind::boolean: return node.value_exact<bool>();
    case ValueKind::whole: return node.value_exact<std::int64_t>();
    case ValueKind::real: return number_of(node);
    case ValueKind::text: return text;
    case ValueKind::numbers: return numbers_of(node);
    case ValueKind::rule: {
      if (text) return RuleText{*text, {}};
      const auto list = list_of(node);
      if (list) return RuleText{"", *list};
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::string shown(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>())
    return shortened(toml_quote(text->substr(0, kMaxShown)));
  if (const auto whole = node.value_exact<std::int64_t>()) return std::to_string(*whole);
  if (const auto real = node.value_exact<double>()) return fmt::format("{}", *real);
  if (const auto truth = node.value_exact<bool>()) return *truth ? "true" : "false";
  if (const auto list = list_of(node))
    return shortened(fmt::format("[{}]", fmt::join(*list, ", ")));
  if (node.is_array()) return "a list";
  return node.is_table() ? "a table" : "a date or time";
}

class FileReader {
 public:
  FileReader(const std::string& path, LoadedConfig& config)
      : path_(shortened(path, 1000)), source_(config, true) {}

  void read(const std::string& text) {
    const toml::table root = parse(text);
    for (const auto& [key, node] : root) {
      const toml::table* section = node.as_table();
      const bool known = is_config_section(key.str());
      if (!known && section) unknown_section(key);
      if (!known) unknown_key(key, std::string(key.str()));
      if (!section)
        throw user_error("{}: {} is {}: needs to be a section; write [{}] and its keys below",
                         at(key.source()), key.str(), shown(node), key.str());
      read_section(key.str(), *section);
    }
  }

 private:
  std::string at(const toml::source_region& source) const {
    return fmt::format("{}:{}:{}", path_, source.begin.line, source.begin.column);
  }

  void read_section(std::string_view section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string full_name = fmt::format("{}.{}", section, name.str());
      const ConfigKey* key = find_config_key(full_name);
      if (!key) unknown_key(name, full_name);
      source_.store({.key = *key,
                     .value = value_of(key->kind, node),
                     .where = fmt::format("{}: {}", at(node.source()), full_name),
                     .shown = shown(node),
                     .origin = fmt::format("{}:{}", path_, node.source().begin.line)});
    }
  }

  [[noreturn]] void unknown_section(const toml::key& key) const {
    std::vector<std::string> sections;
    for (const ConfigKey& known : config_schema())
      if (sections.empty() || sections.back() != known.section)
        sections.emplace_back(known.section);
    const std::string near = nearest_name(key.str().substr(0, kMaxShown), sections);
    throw user_error("{}: unknown section [{}]{}", at(key.source()), shortened(key.str()),
                     near.empty() ? fmt::format("; the sections are {}", fmt::join(sections, ", "))
                                  : fmt::format(": did you mean [{}]?", near));
  }

  [[noreturn]] void unknown_key(const toml::key& key, const std::string& full_name) const {
    const std::string near = nearest_config_key(full_name);
    throw user_error("{}: unknown key {}{}", at(key.source()), shortened(full_name),
                     near.empty() ? "; docs/configuration.md has them all"
                                  : fmt::format(": did you mean {}?", near));
  }

  void refuse_depth(const std::string& text) const {
    int line = 1, dots = 0, braces = 0;
    for (const char c : text) {
      dots = c == '\n' ? 0 : dots + (c == '.');
      line += c == '\n';
      braces += c == '{';
      if (dots > kMaxDotsPerLine || braces > kMaxBraces)
        throw user_error("{}:{}: too deep: more than {}; is it a configuration?", path_, line,
                         dots > kMaxDotsPerLine ? fmt::format("{} dots on a line", kMaxDotsPerLine)
                                                : fmt::format("{} braces", kMaxBraces));
    }
  }

  toml::table parse(const std::string& text) const {
    if (text.size() > kMaxFileBytes)
      throw user_error("{}: larger than {} KiB; is it a configuration?", path_,
                       kMaxFileBytes >> 10);
    refuse_depth(text);
    try {
      return toml::parse(text);
    } catch (const toml::parse_error& error) {
      throw user_error("{}: not valid TOML: {}", at(error.source()),
                       shortened(error.description(), 300));
    }
  }

  std::string path_;
  Source source_;
};

std::string read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  std::string text;
  if (file) {
    text.resize(kMaxFileBytes + 1);  // one more than allowed, so that too much is seen
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  }
  if (!file || std::ferror(file.get()))
    throw UserError(fmt::format("cannot read the configuration {}: {}", shortened(path, 1000),
                                std::strerror(errno)),
                    is_transient(errno) ? ExitCode::temporary : ExitCode::usage);
  return text;
}

// ---- the flags

// "[1, 2]" or "1,2", each part by `parse`.
template <typename Number, typename Parse>
std::optional<std::vector<Number>> parse_list(std::string_view text, const Parse& parse) {
  text = trim(text);
  if (text.starts_with('[') && text.ends_with(']')) text = trim(text.substr(1, text.size() - 2));
  std::vector<Number> list;
  if (text.empty()) return list;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<Number> value = parse(trim(part));
    if (!value) return std::nullopt;
    list.push_back(*value);
  }
  return list;
}

std::optional<int> parse_whole(std::string_view text) {
  const auto value = parse_int(text);
  return value ? to_int(*value) : std::nullopt;
}

std::optional<ConfigValue> parse_value(ValueKind kind, const std::string& text) {
  switch (kind) {
    case ValueKind::boolean:
      if (text != "true" && text != "false") return std::nullopt;
      return text == "true";
    case ValueKind::whole: return parse_int(text);
    case ValueKind::real: return parse_double(text);
    case ValueKind::text:
      if (!is_utf8(text)) return std::nullopt;
      return text;
    case ValueKind::numbers: return parse_list<double>(text, parse_double);
    case ValueKind::rule: {
      const auto list = parse_list<int>(text, parse_whole);
      return list ? RuleText{"", *list} : RuleText{text, {}};
    }
  }
  return std::nullopt;
}

void read_flags(std::span<const std::string> words, LoadedConfig& config) {
  Source source(config, false);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("--"))
      throw user_error("'{}' is not a flag: write --section.key=value", shortened(word));
    const auto equals = word.find('=');
    const std::string name = word.substr(2, equals == word.npos ? word.npos : equals - 2);
    const ConfigKey* key = find_config_key(name);
    if (!key) {
      const std::string near = nearest_config_key(name);
      throw user_error("unknown flag --{}{}", shortened(name),
                       near.empty() ? "; docs/configuration.md has the keys"
                                    : fmt::format(": did you mean --{}?", near));
    }
    const bool alone = i + 1 == words.size() || words[i + 1].starts_with("--");
    std::string text;
    if (equals != word.npos)
      text = word.substr(equals + 1);
    else if (!alone)
      text = words[++i];
    else if (key->kind == ValueKind::boolean)
      text = "true";
    else
      throw user_error("--{} has no value: needs {}", name, allowed_values(*key));
    source.store({.key = *key,
                  .value = parse_value(key->kind, text),
                  .where = "--" + name,
                  .shown = fmt::format("'{}'", shortened(text)),
                  .origin = "flag --" + name});
  }
}

}  // namespace

LoadedConfig load_config_text(const std::string& text, const std::string& name,
                              std::span<const std::string> flags) {
  LoadedConfig config;
  FileReader(name, config).read(text);
  read_flags(flags, config);
  return config;
}

LoadedConfig load_config(const std::string& path, std::span<const std::string> flags) {
  return load_config_text(path.empty() ? "" : read_file(path), path, flags);
}

}  // namespace sluice
