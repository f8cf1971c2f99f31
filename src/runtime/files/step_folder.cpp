#include "sluice/runtime/files/step_folder.h"

#include <fmt/format.h>

#include "sluice/base/text.h"

namespace sluice {
namespace {

constexpr std::string_view kStepPrefix = "step-";

}  // namespace

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<std::int64_t> parse_step_folder(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::optional<std::int64_t> step = parse_int(name.substr(kStepPrefix.size()));
  if (!step || *step < 0 || step_folder_name(*step) != name) return std::nullopt;
  return step;
}

}  // namespace sluice
