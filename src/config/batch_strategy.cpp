#include "sluice/config/batch_strategy.h"

#include <bit>
#include <charconv>

namespace sluice {

std::optional<BatchStrategy> batch_strategy(std::string_view text) {
  constexpr std::string_view kFixed = "fixed:";
  constexpr unsigned kMost = 1 << 20;
  if (text == "flex") return BatchStrategy{};
  if (text == "batch-ada") return BatchStrategy{BatchStrategy::Kind::batch_ada};
  if (!text.starts_with(kFixed)) return std::nullopt;
  unsigned degree = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + kFixed.size(), end, degree);
  if (error != std::errc() || rest != end || degree > kMost || !std::has_single_bit(degree))
    return std::nullopt;
  return BatchStrategy{BatchStrategy::Kind::fixed, static_cast<int>(degree)};
}

}  // namespace sluice
