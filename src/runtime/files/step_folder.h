// Where a run's folder keeps the checkpoint of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr const char* kManifestName = "manifest.json";

std::string step_folder_name(std::int64_t step);                       // step-00000020
std::optional<std::int64_t> parse_step_folder(std::string_view name);  // exactly that form

}  // namespace sluice
