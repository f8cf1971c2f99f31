// The table of every configuration key: reading, printing, documentation and nearest names come
// from it. To add a key: a member in config.h, which holds its default, and a row in schema.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/config/config.h"

namespace sluice {

// A rule by its name, or else numbers.
struct RuleText {
  std::string rule;  // "": the list
  std::vector<int> list;
  bool operator==(const RuleText&) const = default;
};

// A value of any key, on its way between text and Config. `numbers` is one number or several.
using ConfigValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<double>, RuleText>;

enum class ValueKind { boolean, whole, real, text, numbers, rule };  // in ConfigValue's order

// The range of a number, or of each number of a list.
struct ValueRange {
  double least = 0;
  double most = 0;
  bool least_excluded = false;
  bool most_excluded = false;
};

struct ConfigKey {
  std::string_view section = {};
  std::string_view name = {};
  ValueKind kind = ValueKind::text;
  ConfigValue (*get)(const Config&) = nullptr;
  void (*set)(Config&, const ConfigValue&) = nullptr;  // REQUIRES: accept_value
  std::vector<std::string_view> choices = {};          // the only texts, or rules, allowed
  ValueRange range = {};
  std::vector<std::string_view> synonyms = {};  // other spellings of choices: "bf16=bfloat16"
  std::vector<std::string_view> aliases = {};   // other full names, mostly torchtitan's
  bool none_is_first = false;                   // an empty list is allowed and means the first rule
  std::string_view help = {};                   // one line
  std::string_view reason = {};                 // why only this is allowed, where that surprises

  std::string full_name() const;  // "model.layers"
};

// Every key, section by section, in the order in which they are printed.
const std::vector<ConfigKey>& config_schema();

// Keys of [asynchronous] that differ from their defaults, as they are given: "asynchronous.states
// is "owner"".
std::vector<std::string> given_asynchronous_keys(const Config& config);

// By full name or alias; null when there is none.
const ConfigKey* find_config_key(std::string_view full_name);
bool is_config_section(std::string_view name);
// The full name that an unknown one was probably meant to be, or "". Bounded time for any name.
std::string nearest_config_key(std::string_view full_name);

// Completes "needs ...": "a whole number from 1 to 10000".
std::string allowed_values(const ConfigKey& key);

// Whether the key may hold the value. Writes a choice in its canonical spelling. REQUIRES: a value
// of the key's kind.
bool accept_value(const ConfigKey& key, ConfigValue& value);

// A text in double quotes, and a value, as TOML.
std::string toml_quote(std::string_view text);
std::string toml_value(const ConfigValue& value);

// The tables of docs/configuration.md.
std::string schema_markdown();

}  // namespace sluice
