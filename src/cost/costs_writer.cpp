// Writes the costs file.
#include <fmt/ranges.h>

#include <functional>

#include "sluice/base/text.h"
#include "sluice/cost/costs.h"

namespace sluice {
namespace {

using Field = std::pair<const char*, double OpCosts::*>;
constexpr Field kLists[] = {{"F", &OpCosts::f},
                            {"I", &OpCosts::i},
                            {"W", &OpCosts::w},
                            {"B", &OpCosts::b},
                            {"after_F", &OpCosts::after_f},
                            {"after_I", &OpCosts::after_i},
                            {"kv_bytes", &OpCosts::kv},
                            {"kv_gradient_bytes", &OpCosts::kv_gradient},
                            {"sent_forward", &OpCosts::sent_forward},
                            {"sent_backward", &OpCosts::sent_backward}};

// "key": [numbers] of each field, of so many entries; those that only slices have, if asked for.
std::vector<std::string> lists_of(int count, bool sliced,
                                  const std::function<const OpCosts&(int)>& entry) {
  std::vector<std::string> lists;
  for (const auto& [key, field] : kLists) {
    if (!sliced && (field == &OpCosts::kv || field == &OpCosts::kv_gradient)) continue;
    std::vector<std::string> values;
    for (int n = 0; n < count; ++n)
      values.push_back(number(entry(n).*field));
    lists.push_back(fmt::format("\"{}\": [{}]", key, join(values, ", ")));
  }
  return lists;
}

std::string microbatches_json(const Costs& costs) {
  std::vector<std::string> objects;
  for (int m = 0; m < costs.num_microbatches(); ++m)
    objects.push_back(fmt::format(
        "    {{{}}}", join(lists_of(costs.num_stages(), false,
                                    [&](int s) -> const OpCosts& { return costs.of(m, s, 0); }),
                           ", ")));
  return objects.empty() ? ""
                         : fmt::format("  \"per_microbatch\": [\n{}\n  ],\n", join(objects, ",\n"));
}

std::string flexsp_json(const SequenceCosts& costs) {
  std::vector<std::string> rates;
  for (const auto& [degree, rate] : costs.bytes_per_s)
    rates.push_back(fmt::format("\"{}\": {}", degree, number(rate)));
  std::string where;
  if (!costs.device_layers.empty())
    where += fmt::format(",\n    \"device_layers\": [{}]", fmt::join(costs.device_layers, ", "));
  if (costs.parameter_shards > 0)
    where += fmt::format(", \"parameter_shards\": {}", costs.parameter_shards);
  return fmt::format(
      "  \"flexsp\": {{\n    \"a1\": {}, \"a2\": {}, \"b1\": {},\n"
      "    \"stash_bytes_per_token\": {}, \"state_bytes\": {}, "
      "\"all_to_all_bytes_per_token\": {},\n    \"bytes_per_s\": {{{}}}, \"heads\": {}{}\n  }},\n",
      number(costs.a1), number(costs.a2), number(costs.b1), number(costs.stash_bytes_per_token),
      number(costs.state_bytes), number(costs.all_to_all_bytes_per_token), join(rates, ", "),
      costs.heads, where);
}

}  // namespace

std::string costs_to_json(const Costs& costs) {
  std::vector<std::string> stages, links, contention;
  for (int stage = 0; stage < costs.num_stages(); ++stage) {
    std::vector<std::string> lists =
        lists_of(costs.num_slices(), true,
                 [&](int slice) -> const OpCosts& { return costs.at(stage, slice); });
    if (!costs.layers.empty())
      lists.push_back(fmt::format("\"layers\": {}", costs.layers[static_cast<std::size_t>(stage)]));
    if (!costs.reduce.empty())
      lists.push_back(fmt::format("\"reduce_bytes\": {}", number(costs.reduce_bytes(stage))));
    if (!costs.update.empty())
      lists.push_back(fmt::format("\"update\": {}", number(costs.update_time(stage))));
    stages.push_back(fmt::format("    {{\n      {}\n    }}", join(lists, ",\n      ")));
  }
  const auto fields = [](const Link& link) {
    std::string out = fmt::format("\"latency_s\": {}", number(link.latency));
    if (link.bytes_per_time > 0)
      out += fmt::format(", \"bytes_per_s\": {}", number(link.bytes_per_time));
    return out;
  };
  for (const double speed : costs.contention)
    contention.push_back(number(speed));
  for (const auto& [pair, link] : costs.links)
    links.push_back(
        fmt::format("    {{\"from\": {}, \"to\": {}, {}}}", pair.first, pair.second, fields(link)));
  return fmt::format(
      "{{\n  \"schema\": 1,\n{}{}  \"stages\": [\n{}\n  ],\n{}  \"links\": [{}{}{}],\n"
      "  \"default_link\": {{{}}},\n{}{}{}  \"overlap\": {}\n}}\n",
      costs.measured_on ? fmt::format("  \"measured_on\": {},\n", costs.measured_on->json("  "))
                        : "",
      costs.slice_sizes.empty()
          ? ""
          : fmt::format("  \"slice_sizes\": [{}],\n", fmt::join(costs.slice_sizes, ", ")),
      join(stages, ",\n"), microbatches_json(costs), links.empty() ? "" : "\n", join(links, ",\n"),
      links.empty() ? "" : "\n  ", fields(costs.default_link),
      costs.reduce.empty() ? ""
                           : fmt::format("  \"data_link\": {{{}}},\n", fields(costs.data_link)),
      costs.contention.empty() ? ""
                               : fmt::format("  \"contention\": [{}],\n", join(contention, ", ")),
      costs.flexsp ? flexsp_json(*costs.flexsp) : "", number(costs.overlap));
}

}  // namespace sluice
