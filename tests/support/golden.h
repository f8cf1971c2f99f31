// Goldens as text: rows `NAME --flag value ... => key=value ...` and blocks of exact orders. The
// formats are described in tests/data/README.md.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/schedule/generators/generator.h"
#include "sluice/sim/simulate.h"

namespace sluice::test {

// Command-line words of one row, as `sluice schedule` takes them.
struct Request {
  std::string text;
  std::string name;
  GeneratorOptions options;
};
Request parse_request(std::string_view text);

Schedule generate(const Request& request);
Simulation price(const Request& request, const Schedule& schedule);

struct GoldenRow {
  std::string where;  // file:line
  Request request;
  std::vector<std::pair<std::string, std::string>> expected;
};
std::vector<GoldenRow> read_golden_rows(const std::string& folder);

// The value of a key such as "span" or "peaks", as text.
bool matches(const std::string& key, const std::string& expected, const Schedule& schedule,
             const Simulation& simulation, std::string& actual);

struct GoldenOrder {
  std::string where;
  Request request;
  std::vector<std::string> rows;  // one per device: op text, or letters
};
std::vector<GoldenOrder> read_golden_orders(const std::string& folder);

// A program in the letters of the zero-bubble papers: F f, B b, W w for two stages per device (B
// the input gradient of the second), F B W for one.
std::string letters(const Schedule& schedule, int device);

std::string read_text(const std::string& path);
std::vector<std::string> files_in(const std::string& folder);  // sorted paths

}  // namespace sluice::test
