// Enumerations whose values have names that users read and write: in configurations, files and
// messages. An enumeration joins in by a function beside it:
//
//   enum class DeviceKind { cpu, cuda };
//   constexpr auto names_of(DeviceKind) { return std::array<std::string_view, 2>{"cpu", "cuda"}; }
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

namespace sluice {

template <typename E>
concept Named = std::is_enum_v<E> && requires(E e) {
  names_of(e)[0];
};

template <Named E>
constexpr std::string_view name_of(E value) {
  return names_of(value)[static_cast<std::size_t>(value)];
}

// The value of that name, if there is one.
template <Named E>
constexpr std::optional<E> named(std::string_view name) {
  constexpr auto kNames = names_of(E{});
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace sluice

template <sluice::Named E>
struct fmt::formatter<E> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(E value, Context& context) const {
    return fmt::formatter<std::string_view>::format(sluice::name_of(value), context);
  }
};
