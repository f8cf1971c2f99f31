// A building block of the user's own, read from a file: the start slots of one microbatch on each
// device, repeated every `period` slots, then squeezed and reordered like the built-in blocks.
// V-Half at p = 2, say (examples/block-v-half.toml has p = 4 and explains every key):
//
//   period = 6
//   placement = "v"
//   device = [ { F = [0, 4], I = [13, 8] },      # device 0   F . . . f . . . B . . . . b
//              { F = [2, 3], I = [12, 10] } ]    # device 1   . . F f . . . . . . B . b .
#include <toml++/toml.h>

#include <algorithm>
#include <cstdint>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/generators/building_block.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice::generators {
namespace {

constexpr std::int64_t kMaxSlot = 1'000'000;  // of a period or a start
constexpr std::int64_t kMaxFileBytes = 64 << 20;
constexpr std::int64_t kMaxStages = 10'000'000;

toml::table parse(const BlockText& block) {
  if (static_cast<std::int64_t>(block.text.size()) > kMaxFileBytes)
    throw user_error("`block` is '{}': the file is larger than {} MiB; is it a building block?",
                     block.name, kMaxFileBytes >> 20);
  // toml++ limits the depth of values but not of dotted keys, and walks them recursively.
  constexpr int kMaxDots = 400;
  int dots = 0;
  for (const char c : block.text) {
    dots = c == '\n' ? 0 : dots + (c == '.');
    if (dots > kMaxDots)
      throw user_error("{}: more than {} dots on one line; is it a building block?", block.name,
                       kMaxDots);
  }
  try {
    return toml::parse(block.text, block.name);
  } catch (const toml::parse_error& error) {
    throw user_error("{}:{}:{}: not valid TOML: {}", block.name, error.source().begin.line,
                     error.source().begin.column, error.description());
  }
}

// A table of the file with the words that an error needs to say where it is.
struct Table {
  const std::string& path;
  std::string where;  // "" or "device 2: "
  const toml::table& table;

  void refuse_other_keys(std::initializer_list<std::string> known) const {
    const std::vector<std::string> names(known);
    for (const auto& [key, value] : table) {
      if (std::find(names.begin(), names.end(), key.str()) != names.end()) continue;
      const std::string nearest = nearest_name(key.str(), names);
      throw user_error("{}: {}unknown key '{}'{}; the keys are {}", path, where, key.str(),
                       nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest),
                       join(names, ", "));
    }
  }

  const toml::node& get(std::string_view key) const {
    const toml::node* node = table.get(key);
    if (!node) throw user_error("{}: {}key '{}' is missing; add it", path, where, key);
    return *node;
  }

  int whole_number(std::string_view key, const toml::node& node, std::int64_t least,
                   std::int64_t most) const {
    const auto value = node.value_exact<std::int64_t>();
    if (!value)
      throw user_error("{}: {}{} is not a whole number (line {}); write one from {} to {}", path,
                       where, key, node.source().begin.line, least, most);
    if (*value < least || *value > most)
      throw user_error("{}: {}{} is {}: needs a whole number from {} to {}", path, where, key,
                       *value, least, most);
    return static_cast<int>(*value);
  }

  // One start slot per chunk.
  std::vector<int> starts(std::string_view key, int count) const {
    const toml::array* array = get(key).as_array();
    if (!array || array->size() != static_cast<std::size_t>(count))
      throw user_error("{}: {}{} needs a list of {} start slot{}, one per chunk", path, where, key,
                       count, count == 1 ? "" : "s");
    std::vector<int> slots;
    for (const toml::node& node : *array)
      slots.push_back(whole_number(key, node, 0, kMaxSlot));
    return slots;
  }
};

Placement read_placement(const Table& file, int num_devices) {
  const auto name = file.get("placement").value_exact<std::string>();
  if (!name || (*name != "linear" && *name != "looped" && *name != "v"))
    throw user_error("{}: placement is {}: needs \"linear\", \"looped\" or \"v\"", file.path,
                     name ? fmt::format("\"{}\"", *name) : "not a string");
  int stages_per_device = *name == "linear" ? 1 : 2;
  if (const toml::node* node = file.table.get("stages_per_device"))
    stages_per_device = file.whole_number("stages_per_device", *node, 1, kMaxStages / num_devices);
  if (*name == "v") return Placement::vee(num_devices, stages_per_device);
  if (*name == "looped") return Placement::looped(num_devices, stages_per_device);
  if (stages_per_device != 1)
    throw user_error(
        "{}: stages_per_device is {}: a linear placement has 1; use \"looped\" or \"v\"", file.path,
        stages_per_device);
  return Placement::linear(num_devices);
}

void read_device(const Table& row, int device, BuildingBlock& block) {
  row.refuse_other_keys({"F", "I", "W", "B"});
  if (row.table.contains("I") == block.fused || row.table.contains("B") != block.fused ||
      row.table.contains("W") == block.weight.empty())
    throw user_error(
        "{}: {}its keys differ from device 0's, or it has B beside I or W; give every device F and "
        "I, or F, I and W, or F and B",
        row.path, row.where);
  const std::vector<int>& stages = block.placement.stages_of(device);
  const auto read = [&](std::string_view key, std::vector<int>& starts) {
    const std::vector<int> slots = row.starts(key, static_cast<int>(stages.size()));
    for (std::size_t c = 0; c < stages.size(); ++c)
      starts[static_cast<std::size_t>(stages[c])] = slots[c];
  };
  read("F", block.forward);
  read(block.fused ? "B" : "I", block.backward);
  if (!block.weight.empty()) read("W", block.weight);
}

BuildingBlock read_block(const GeneratorOptions& o) {
  const int num_devices = o.devices;
  const std::string& path = o.block.name;
  const toml::table table = parse(o.block);
  const Table file{path, "", table};
  file.refuse_other_keys({"period", "placement", "stages_per_device", "device"});
  const toml::array* rows = file.get("device").as_array();
  if (!rows || !rows->is_homogeneous<toml::table>())
    throw user_error("{}: device needs one table per device, each after a line [[device]]", path);
  if (rows->size() != static_cast<std::size_t>(num_devices))
    throw user_error("`devices` is {}: {} has rows for {}; use `devices` {} or another block",
                     num_devices, path, rows->size(), rows->size());

  BuildingBlock block;
  block.period = file.whole_number("period", file.get("period"), 1, kMaxSlot);
  block.placement = read_placement(file, num_devices);

  const toml::table& first = *rows->get_as<toml::table>(0);
  block.fused = first.contains("B");
  const auto num_stages = static_cast<std::size_t>(block.placement.num_stages());
  block.forward.resize(num_stages);
  block.backward.resize(num_stages);
  if (first.contains("W") && !block.fused) block.weight.resize(num_stages);
  for (int d = 0; d < num_devices; ++d)
    read_device({path, fmt::format("device {}: ", d),
                 *rows->get_as<toml::table>(static_cast<std::size_t>(d))},
                d, block);
  if (const std::string problem = block_problem(block); !problem.empty())
    throw user_error("{}: {}", path, problem);
  return block;
}

Schedule generate(const GeneratorOptions& o) {
  const BuildingBlock block = read_block(o);
  return schedule_from_passes("block", block.placement, o.microbatches, 1,
                              order_from_block(block, o.microbatches));
}

}  // namespace

extern const Generator block;
const Generator block = {
    .name = "block",
    .aliases = {},
    .summary = "your own building block (`block` FILE), repeated, squeezed and reordered",
    .bubble = "depends on the block",
    .memory = "sum over a device's stages of ceil(lifespan/period), at most",
    .knobs = {.default_stages_per_device = 1, .block = true},
    .generate = generate,
    .block = read_block};

}  // namespace sluice::generators
