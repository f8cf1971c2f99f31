#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice::test {
namespace {

int whole(std::string_view text) {
  const auto value = parse_int(text);
  SLUICE_CHECK(value, "'{}' is no whole number", text);
  return static_cast<int>(*value);
}

double real(std::string_view text) {
  // Fact sheets write .1585 for 0.1585.
  const auto value =
      parse_double(text.starts_with('.') ? "0" + std::string(text) : std::string(text));
  SLUICE_CHECK(value, "'{}' is no number", text);
  return *value;
}

std::vector<double> reals(std::string_view text) {
  std::vector<double> out;
  for (const std::string_view part : split(text, ','))
    out.push_back(real(part));
  return out;
}

bool close(double actual, std::string_view expected) {
  const auto digits = expected.find('~');
  if (digits == std::string_view::npos)
    return std::abs(actual - real(expected)) <= 1e-9 * std::max(1.0, std::abs(actual));
  const double half = 0.5 * std::pow(10.0, -whole(expected.substr(digits + 1)));
  return std::abs(actual - real(expected.substr(0, digits))) <= half * (1 + 1e-6);
}

}  // namespace

Request parse_request(std::string_view text) {
  Request request;
  request.text = std::string(trim(text));
  std::istringstream words(request.text);
  words >> request.name;
  std::string flag, value;
  while (words >> flag) {
    const bool has_value = static_cast<bool>(words >> value);
    SLUICE_CHECK(has_value, "'{}' has no value in '{}'", flag, request.text);
    GeneratorOptions& o = request.options;
    if (flag == "--devices")
      o.devices = whole(value);
    else if (flag == "--microbatches")
      o.microbatches = whole(value);
    else if (flag == "--stages-per-device")
      o.stages_per_device = whole(value);
    else if (flag == "--group-size")
      o.group_size = whole(value);
    else if (flag == "--slices")
      o.slices = whole(value);
    else if (flag == "--memory-cap")
      o.memory_cap = reals(value);
    else if (flag == "--keep-after-i")
      o.keep_after_i = real(value);
    else if (flag == "--comm")
      o.comm = real(value);
    else if (flag == "--block")
      o.block = {value, read_text(std::string(SLUICE_SOURCE_DIR) + "/" + value)};
    else if (flag == "--times") {
      const std::vector<double> times = reals(value);
      SLUICE_CHECK(times.size() == 3, "--times {}", value);
      o.times = {times[0], times[1], times[2]};
    } else if (flag == "--slice-sizes") {
      for (const double size : reals(value))
        o.slice_sizes.push_back(static_cast<std::int64_t>(size));
      o.slices = static_cast<int>(o.slice_sizes.size());
    } else {
      SLUICE_CHECK(false, "unknown flag '{}' in '{}'", flag, request.text);
    }
  }
  return request;
}

Schedule generate(const Request& request) {
  return generate_schedule(request.name, request.options);
}

Simulation price(const Request& request, const Schedule& schedule) {
  const GeneratorOptions& o = request.options;
  return simulate(schedule, unit_costs(schedule, o.times, o.comm, o.keep_after_i),
                  {.keep_after_i = o.keep_after_i});
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  SLUICE_CHECK(file.good(), "cannot read {}", path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<GoldenRow> read_golden_rows(const std::string& folder) {
  std::vector<GoldenRow> rows;
  for (const std::string& path : files_in(folder)) {
    const std::string text = read_text(path);
    int line_number = 0;
    for (const std::string_view raw : split(text, '\n')) {
      ++line_number;
      const std::string_view line = trim(raw);
      if (line.empty() || line[0] == '#') continue;
      const std::string where =
          fmt::format("{}:{}", std::filesystem::path(path).filename().string(), line_number);
      const auto arrow = line.find("=>");
      SLUICE_CHECK(arrow != std::string_view::npos, "{}: no '=>'", where);
      GoldenRow row{where, parse_request(line.substr(0, arrow)), {}};
      std::istringstream words{std::string(line.substr(arrow + 2))};
      std::string word;
      while (words >> word) {
        const auto equals = word.find('=');
        SLUICE_CHECK(equals != std::string::npos, "{}: '{}' is no key=value", where, word);
        row.expected.emplace_back(word.substr(0, equals), word.substr(equals + 1));
      }
      SLUICE_CHECK(!row.expected.empty(), "{}: expects nothing", where);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

bool matches(const std::string& key, const std::string& expected, const Schedule& schedule,
             const Simulation& simulation, std::string& actual) {
  if (key == "peaks") {
    const std::vector<std::string_view> parts = split(expected, ',');
    bool equal = parts.size() == simulation.devices.size();
    for (std::size_t d = 0; d < simulation.devices.size(); ++d) {
      const double peak = simulation.devices[d].peak_activations;
      actual += (d ? "," : "") + number(peak);
      equal = equal && close(peak, parts[d]);
    }
    return equal;
  }
  double value = 0;
  if (key == "makespan")
    value = simulation.makespan;
  else if (key == "span")
    value = simulation.span;
  else if (key == "ideal")
    value = simulation.ideal;
  else if (key == "bubble")
    value = simulation.bubble;
  else if (key == "bubble_rate")
    value = simulation.bubble_rate;
  else if (key == "bubble_fraction")
    value = simulation.bubble_fraction;
  else if (key == "max_peak")
    value = simulation.max_peak;
  else if (key == "ops")
    value = static_cast<double>(schedule.num_compute_ops());
  else
    SLUICE_CHECK(false, "unknown key '{}'", key);
  actual = number(value);
  return close(value, expected);
}

std::vector<GoldenOrder> read_golden_orders(const std::string& folder) {
  std::vector<GoldenOrder> orders;
  for (const std::string& path : files_in(folder)) {
    const std::string text = read_text(path);
    int line_number = 0;
    bool open = false;
    for (const std::string_view raw : split(text, '\n')) {
      ++line_number;
      const std::string_view line = trim(raw);
      if (!line.empty() && line[0] == '#') continue;
      if (line.empty()) {
        open = false;
      } else if (!open) {
        orders.push_back(
            {fmt::format("{}:{}", std::filesystem::path(path).filename().string(), line_number),
             parse_request(line),
             {}});
        open = true;
      } else {
        orders.back().rows.emplace_back(line);
      }
    }
  }
  return orders;
}

std::string letters(const Schedule& schedule, int device) {
  const std::vector<int>& stages = schedule.placement.stages_of(device);
  std::string out;
  for (const Op& op : schedule.programs[static_cast<std::size_t>(device)]) {
    const bool second = stages.size() > 1 && op.stage == stages[1];
    const bool two = stages.size() > 1;
    if (op.kind == OpKind::F) out += second ? 'f' : 'F';
    if (op.kind == OpKind::I) out += second || !two ? 'B' : 'b';
    if (op.kind == OpKind::W) out += second || !two ? 'W' : 'w';
    if (op.kind == OpKind::B) out += second || !two ? "BW" : "bw";
  }
  return out;
}

}  // namespace sluice::test
