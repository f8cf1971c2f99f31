#include "sluice/schedule/text_format.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/base/text.h"
#include "sluice/schedule/strict_json.h"

namespace sluice {
namespace {

// More than anyone needs: a lowered schedule of 512 devices, 1024 stages and 2048 microbatches has
// 160 MiB.
constexpr std::size_t kMaxScheduleBytes = std::size_t{1} << 30;

using Json = nlohmann::ordered_json;

constexpr std::string_view kMagic = "# sluice ";
constexpr std::string_view kGroupSuffix = ")OVERLAP_F_B";
constexpr std::int64_t kMaxStage = 1 << 20;
constexpr std::int64_t kMaxMicrobatch = 1 << 26;

// Where in the text we are, for messages.
struct Cell {
  std::size_t row;
  std::size_t column;
  std::string_view text;
};

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text.size() > kMost ? out + "..." : out;
}

UserError at(const Cell& cell, std::string_view problem) {
  return user_error("row {}, column {}: '{}': {}", cell.row, cell.column, shown(cell.text),
                    problem);
}

// Takes a decimal number off the front of `rest`.
std::optional<std::int64_t> take_number(std::string_view& rest, const Cell& cell,
                                        std::string_view what, std::int64_t most) {
  std::size_t digits = 0;
  while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9')
    ++digits;
  if (digits == 0) return std::nullopt;
  const auto value = parse_int(rest.substr(0, digits));
  if (!value || *value > most)
    throw at(cell, fmt::format("{} number is too large (at most {})", what, most));
  rest.remove_prefix(digits);
  return value;
}

Op parse_op(std::string_view text, const Cell& cell) {
  Op op;
  std::string_view rest = text;
  const auto stage = take_number(rest, cell, "stage", kMaxStage - 1);
  if (!stage) throw at(cell, "an op starts with its stage number, as in 2F0");
  op.stage = static_cast<std::int32_t>(*stage);

  std::size_t letters = 0;
  while (letters < rest.size() &&
         ((rest[letters] >= 'A' && rest[letters] <= 'Z') || rest[letters] == '_'))
    ++letters;
  const std::string_view name = rest.substr(0, letters);
  rest.remove_prefix(letters);
  bool known = false;
  for (int k = 0; k < kNumOpKinds && !known; ++k) {
    known = kind_name(static_cast<OpKind>(k)) == name;
    if (known) op.kind = static_cast<OpKind>(k);
  }
  if (!known)
    throw at(cell, fmt::format("'{}' is not an op kind; the kinds are F I W B SEND_F RECV_F SEND_B "
                               "RECV_B REDUCE_GRAD UPDATE UNSHARD RESHARD",
                               shown(name)));

  const std::string_view numbered = has_window(op.kind) ? "window" : "microbatch";
  if (const auto microbatch = take_number(rest, cell, numbered, kMaxMicrobatch - 1)) {
    if (!has_microbatch(op.kind) && !has_window(op.kind))
      throw at(cell, fmt::format("{} takes no microbatch", kind_name(op.kind)));
    op.microbatch = static_cast<std::int32_t>(*microbatch);
  } else if (has_microbatch(op.kind)) {
    throw at(cell, fmt::format("{} needs a microbatch number", kind_name(op.kind)));
  }
  const auto take_suffix = [&](char mark, std::string_view what, std::int64_t most) {
    if (rest.empty() || rest[0] != mark) return std::int64_t{0};
    rest.remove_prefix(1);
    const auto value = take_number(rest, cell, what, most);
    if (!value) throw at(cell, fmt::format("'{}' needs a {} number after it", mark, what));
    return *value;
  };
  if (has_microbatch(op.kind))
    op.slice = static_cast<std::uint16_t>(take_suffix('.', "slice", kMaxSlices - 1));
  op.pipe = static_cast<std::uint16_t>(take_suffix('@', "pipe", kMaxPipes - 1)) & 0x7ff;
  if (!rest.empty()) throw at(cell, fmt::format("unexpected '{}' after the op", shown(rest)));
  return op;
}

void parse_cell(const Cell& cell, Program& program) {
  if (cell.text.empty() || cell.text[0] != '(') {
    program.push_back(parse_op(cell.text, cell));
    return;
  }
  const auto close = cell.text.find(')');
  if (close == std::string_view::npos || cell.text.substr(close) != kGroupSuffix)
    throw at(cell, "a group is written (0F4;7B2)OVERLAP_F_B");
  bool first = true;
  for (const std::string_view member : split(cell.text.substr(1, close - 1), ';')) {
    Op op = parse_op(trim(member), cell);
    op.joined = !first;
    first = false;
    program.push_back(op);
  }
}

struct Metadata {
  std::string name;
  std::string placement;
  std::int64_t stages = 0, microbatches = 0, windows = 0, slices = 0, pipes = 0;
  WeightVersions weights = WeightVersions::newest;
  bool updates_by_stage = false;
  std::vector<std::int64_t> slice_sizes;
};

// A metadata value for messages. Lists and objects are only named: printing recurses as deep as
// they nest, and a hostile text may nest them without end.
std::string shown_value(const Json& value) {
  return value.is_structured() ? value.type_name() : shown(value.dump());
}

std::int64_t metadata_int(const Json& value, std::string_view key, std::int64_t least,
                          std::int64_t most) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < least ||
      value.get<std::int64_t>() > most || (value.is_number_unsigned() && value > most))
    throw user_error("row 1: metadata '{}' is {}: needs a whole number from {} to {}", key,
                     shown_value(value), least, most);
  return value.get<std::int64_t>();
}

std::string metadata_string(const Json& value, std::string_view key) {
  if (!value.is_string())
    throw user_error("row 1: metadata '{}' is {}: needs a string", key, shown_value(value));
  const auto text = value.get<std::string>();
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      throw user_error("row 1: metadata '{}' is '{}': control characters are not allowed", key,
                       shown(text));
  return text;
}

WeightVersions metadata_weights(const Json& value) {
  const std::string text = metadata_string(value, "weights");
  if (const auto weights = named<WeightVersions>(text)) return *weights;
  throw user_error("row 1: metadata 'weights' is '{}': needs newest, stash, previous or predicted",
                   shown(text));
}

Metadata parse_metadata(std::string_view line) {
  // A metadata line is small; the limit keeps a hostile one from costing much.
  if (line.size() > (1 << 20))
    throw user_error("row 1: metadata of {} bytes is too long: at most {}", line.size(), 1 << 20);
  const Json json = [&] {
    try {
      return parse_strict_json(line.substr(kMagic.size()));
    } catch (const UserError& error) {
      throw user_error("row 1: metadata: {}", error.what());
    }
  }();
  if (!json.is_object()) throw user_error("row 1: '# sluice ' must be followed by a JSON object");
  Metadata data;
  for (const auto& [key, value] : json.items()) {
    if (key == "schema")
      metadata_int(value, key, 1, 1);
    else if (key == "name")
      data.name = metadata_string(value, key);
    else if (key == "placement")
      data.placement = metadata_string(value, key);
    else if (key == "stages")
      data.stages = metadata_int(value, key, 1, kMaxStage);
    else if (key == "microbatches")
      data.microbatches = metadata_int(value, key, 1, kMaxMicrobatch);
    else if (key == "windows")
      data.windows = metadata_int(value, key, 1, kMaxMicrobatch);
    else if (key == "weights")
      data.weights = metadata_weights(value);
    else if (key == "updates_by_stage" && value.is_boolean())
      data.updates_by_stage = value.get<bool>();
    else if (key == "slices")
      data.slices = metadata_int(value, key, 1, kMaxSlices);
    else if (key == "pipes")
      data.pipes = metadata_int(value, key, 1, kMaxPipes);
    else if (key == "slice_sizes" && value.is_array())
      for (const Json& size : value)
        data.slice_sizes.push_back(metadata_int(size, key, 1, std::int64_t{1} << 40));
    else
      throw user_error(
          "row 1: metadata '{}' is unknown: schema, name, placement, stages, microbatches, "
          "windows, "
          "weights, updates_by_stage (true or false), slices, pipes and slice_sizes (a list) are "
          "known",
          shown(key));
  }
  if (!data.slice_sizes.empty() &&
      static_cast<std::int64_t>(data.slice_sizes.size()) != std::max<std::int64_t>(data.slices, 1))
    throw user_error("row 1: metadata has {} slice_sizes for {} slices", data.slice_sizes.size(),
                     std::max<std::int64_t>(data.slices, 1));
  if (data.microbatches > 0 && data.windows > 0 && data.microbatches % data.windows != 0)
    throw user_error("row 1: metadata has {} microbatches in {} windows: each window has as many",
                     data.microbatches, data.windows);
  return data;
}

// Each stage sits where its first compute op is; a stage without one sits where it is named at all.
Placement infer_placement(const std::vector<Program>& programs, int num_stages, int num_pipes) {
  const int num_devices = static_cast<int>(programs.size());
  std::vector<std::vector<int>> device_of(
      static_cast<std::size_t>(num_pipes),
      std::vector<int>(static_cast<std::size_t>(num_stages), -1));
  for (const bool compute : {true, false})
    for (std::size_t d = 0; d < programs.size(); ++d)
      for (const Op& op : programs[d])
        if (is_compute(op.kind) == compute && op.stage < num_stages && op.pipe < num_pipes) {
          int& device = device_of[op.pipe][static_cast<std::size_t>(op.stage)];
          if (device < 0) device = static_cast<int>(d);
        }
  for (auto& pipe : device_of)
    for (int& device : pipe)
      device = std::max(device, 0);
  Placement custom = Placement::custom(num_devices, std::move(device_of));
  const int v = num_stages / std::max(num_devices, 1);
  if (num_pipes == 1 && v >= 1 && num_stages == v * num_devices)
    for (const Placement& known :
         {v == 1 ? Placement::linear(num_devices) : Placement::looped(num_devices, v),
          Placement::vee(num_devices, v)})
      if (known == custom) return known;
  if (num_pipes == 2 && num_stages == num_devices && Placement::mirrored(num_devices) == custom)
    return Placement::mirrored(num_devices);
  return custom;
}

std::optional<Placement> named_placement(const Metadata& data, int num_devices, int num_stages,
                                         int num_pipes) {
  if (data.placement.empty() || data.placement == "custom") return std::nullopt;
  const int v = num_stages / num_devices;
  if (num_stages == v * num_devices && v >= 1) {
    if (data.placement == "linear" && v == 1 && num_pipes == 1)
      return Placement::linear(num_devices);
    if (data.placement == "looped" && num_pipes == 1) return Placement::looped(num_devices, v);
    if (data.placement == "v" && num_pipes == 1) return Placement::vee(num_devices, v);
    if (data.placement == "mirrored" && v == 1 && num_pipes == 2)
      return Placement::mirrored(num_devices);
  }
  throw user_error(
      "row 1: metadata placement '{}' does not fit {} on {} in {}: linear, looped, v, mirrored and "
      "custom are known",
      shown(data.placement), counted(num_stages, "stage"), counted(num_devices, "device"),
      counted(num_pipes, "pipe"));
}

}  // namespace

std::string write_schedule(const Schedule& schedule, TextFlavour flavour) {
  std::string out;
  if (flavour == TextFlavour::torch) {
    if (schedule.num_slices > 1)
      throw user_error(
          "torch-csv cannot hold {}: it has {} slices, and PyTorch's format has none; use csv",
          schedule.name, schedule.num_slices);
    if (schedule.num_pipes() > 1)
      throw user_error(
          "torch-csv cannot hold {}: it has {} pipes, and PyTorch's format has none; use csv",
          schedule.name, schedule.num_pipes());
    for (const Program& program : schedule.programs)
      for (const Op& op : program)
        if (op.kind == OpKind::Update || schedule.num_windows > 1)
          throw user_error("torch-csv cannot hold {}: PyTorch's format has no UPDATE; use csv",
                           schedule.name);
  } else {
    Json json = {{"schema", 1},
                 {"name", schedule.name},
                 {"placement", placement_name(schedule.placement.kind())},
                 {"stages", schedule.num_stages()},
                 {"microbatches", schedule.num_microbatches}};
    if (schedule.num_windows > 1) json["windows"] = schedule.num_windows;
    if (schedule.weights != WeightVersions::newest) json["weights"] = name_of(schedule.weights);
    if (schedule.updates_by_stage) json["updates_by_stage"] = true;
    json.update({{"slices", schedule.num_slices}, {"pipes", schedule.num_pipes()}});
    if (!schedule.slice_sizes.empty()) json["slice_sizes"] = schedule.slice_sizes;
    out += fmt::format("{}{}\n", kMagic, json.dump(-1, ' ', true, Json::error_handler_t::replace));
  }
  for (int d = 0; d < schedule.num_devices(); ++d) {
    const std::string row = schedule.program_text(d);
    // A blank line at the end of a text is not a device; a row of idle cells is.
    out += (row.empty() ? "," : row) + '\n';
  }
  return out;
}

Schedule read_schedule(std::string_view text) {
  Metadata data;
  std::size_t row = 1;
  if (text.starts_with(kMagic)) {
    const std::string_view line = text.substr(0, text.find('\n'));
    data = parse_metadata(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++row;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r'))
    text.remove_suffix(1);

  Schedule schedule;
  std::int64_t stages = data.stages, microbatches = data.microbatches;
  std::int64_t windows = std::max<std::int64_t>(data.windows, 1);
  std::int64_t slices = std::max<std::int64_t>(data.slices, 1);
  std::int64_t pipes = std::max<std::int64_t>(data.pipes, 1);
  std::size_t ops = 0;
  for (const std::string_view line : split(text, '\n')) {
    Program& program = schedule.programs.emplace_back();
    std::size_t column = 0;
    for (std::string_view cell : split(line, ',')) {
      ++column;
      cell = trim(cell);
      if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
        cell = trim(cell.substr(1, cell.size() - 2));
      if (!cell.empty()) parse_cell({row, column, cell}, program);
    }
    for (const Op& op : program) {
      // What the metadata leaves open is read off the ops; a number past the metadata's is left
      // for the validator to report with its device and position.
      if (data.stages == 0) stages = std::max<std::int64_t>(stages, op.stage + 1);
      if (data.windows == 0 && has_window(op.kind))
        windows = std::max<std::int64_t>(windows, op.microbatch + 1);
      if (data.microbatches == 0 && has_microbatch(op.kind))
        microbatches = std::max<std::int64_t>(microbatches, op.microbatch + 1);
      if (data.slices == 0) slices = std::max<std::int64_t>(slices, op.slice + 1);
      if (data.pipes == 0) pipes = std::max<std::int64_t>(pipes, op.pipe + 1);
    }
    ops += program.size();
    ++row;
  }
  if (ops == 0) throw user_error("row 1: no ops found: a schedule has one row of ops per device");
  if (microbatches == 0)
    throw user_error("row 1: no F, I, W or B found: a schedule has ops such as 0F0 and 0B0");
  // Every (stage, microbatch, slice) needs ops of its own, so numbers far beyond the number of ops
  // are a typing mistake; refuse them before any table is made for them.
  const double cells =
      static_cast<double>(stages) * static_cast<double>(microbatches) * static_cast<double>(slices);
  if (cells > 16.0 * static_cast<double>(ops) + 4096)
    throw user_error(
        "the largest numbers are stage {}, microbatch {}, slice {}: that takes {:.3g} forwards, "
        "and "
        "the text has {} ops; one of these numbers is wrong",
        stages - 1, microbatches - 1, slices - 1, cells, ops);
  if (static_cast<double>(pipes) * static_cast<double>(stages) * static_cast<double>(windows) >
      16.0 * static_cast<double>(ops) + 4096)
    throw user_error("the largest pipe is {}{}: too many for {} ops", pipes - 1,
                     windows > 1 ? fmt::format(", the largest window {}", windows - 1) : "", ops);
  if (microbatches % windows != 0)
    throw user_error(
        "the largest numbers are microbatch {} and window {}: {} microbatches do not make {} "
        "windows of equal size",
        microbatches - 1, windows - 1, microbatches, windows);
  // One window has no number; a text may write it all the same.
  if (windows == 1)
    for (Program& program : schedule.programs)
      for (Op& op : program)
        if (has_window(op.kind)) op.microbatch = -1;

  schedule.name = data.name.empty() ? "custom" : data.name;
  schedule.num_microbatches = static_cast<int>(microbatches);
  schedule.num_windows = static_cast<int>(windows);
  schedule.weights = data.weights;
  schedule.updates_by_stage = data.updates_by_stage;
  schedule.num_slices = static_cast<int>(slices);
  schedule.slice_sizes = std::move(data.slice_sizes);
  const int num_devices = schedule.num_devices();
  const auto named =
      named_placement(data, num_devices, static_cast<int>(stages), static_cast<int>(pipes));
  schedule.placement =
      named ? *named
            : infer_placement(schedule.programs, static_cast<int>(stages), static_cast<int>(pipes));
  return schedule;
}

Schedule read_schedule_file(const std::string& file) {
  Schedule schedule = parse_file(file, kMaxScheduleBytes,
                                 [](const std::string& text) { return read_schedule(text); });
  if (schedule.name == "custom" && file != "-")
    schedule.name = std::filesystem::path(file).stem().string();
  schedule.name = printable(schedule.name);
  return schedule;
}

}  // namespace sluice
