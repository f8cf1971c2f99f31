// How the batches of a run are planned, as flexsp.strategy says.
#pragma once

#include <optional>
#include <string_view>

namespace sluice {

struct BatchStrategy {
  enum class Kind { flex, fixed, batch_ada };
  Kind kind = Kind::flex;
  int degree = 0;  // of all groups, where it is fixed

  bool operator==(const BatchStrategy&) const = default;
};

// flex, batch-ada or fixed:D; nothing for any other text.
std::optional<BatchStrategy> batch_strategy(std::string_view text);

}  // namespace sluice
