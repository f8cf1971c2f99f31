#include "sluice/config/fields.h"

#include <array>
#include <utility>

#include "sluice/base/error.h"

namespace sluice {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kKeys = {
    {{"field", "key"},
     {"devices", "parallelism.pipeline_parallel_degree"},
     {"microbatches", "parallelism.num_microbatches"},
     {"stages_per_device", "parallelism.stages_per_device"},
     {"group_size", "parallelism.group_size"},
     {"slices", "parallelism.slices"},
     {"slice_sizes", "parallelism.slice_sizes"},
     {"memory_cap", "parallelism.memory_cap"},
     {"costs", "parallelism.costs"},
     {"order", "asynchronous.order"},
     {"pipes", "asynchronous.pipes"},
     {"in_flight", "asynchronous.in_flight"},
     {"border", "asynchronous.border"},
     {"update_slot", "asynchronous.update_slot"},
     {"weights", "asynchronous.weights"},
     {"max_mismatch", "asynchronous.max_mismatch"},
     {"max_delay", "asynchronous.max_delay"}}};

std::string key_of(std::string_view field) {
  for (const auto& [name, key] : kKeys)
    if (name == field) return std::string(key);
  return "";
}

}  // namespace

std::string as_keys(std::string_view text) { return spell_fields(text, key_of); }

}  // namespace sluice
