#include "sluice/run/batch_plan_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/strict_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// The members of an object: all of those named, and no others.
class Members {
 public:
  Members(const Json& object, std::string where, std::set<std::string> names)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw bad_data("{} is no object", where_);
    for (const auto& [key, value] : object.items())
      if (!names.contains(key))
        throw bad_data("{} has {}: needs {}", where_, json_quote(key), fmt::join(names, ", "));
    for (const std::string& name : names)
      if (!object.contains(name)) throw bad_data("{} has no {}", where_, name);
  }

  std::int64_t number(const char* name, std::int64_t most) const {
    return number_in(object_.at(name), fmt::format("{}.{}", where_, name), most);
  }
  const Json& list(const char* name) const {
    const Json& value = object_.at(name);
    if (!value.is_array()) throw bad_data("{}.{} is no list", where_, name);
    return value;
  }
  std::string text(const char* name) const {
    const Json& value = object_.at(name);
    if (!value.is_string()) throw bad_data("{}.{} is no text", where_, name);
    return value.get<std::string>();
  }

  static std::int64_t number_in(const Json& value, const std::string& where, std::int64_t most) {
    const bool fits = value.is_number_unsigned() &&
                      value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!fits)
      throw bad_data("{} is {}: needs a whole number from 0 to {}", where, value.dump(), most);
    return value.get<std::int64_t>();
  }

 private:
  const Json& object_;
  std::string where_;
};

SequenceGroup group_in(const Json& object, const std::string& where) {
  constexpr std::int64_t kMostRanks = 1 << 24;
  const Members members(object, where, {"degree", "first_rank", "sequences"});
  SequenceGroup group{.degree = static_cast<int>(members.number("degree", kMostRanks)),
                      .first_rank = static_cast<int>(members.number("first_rank", kMostRanks)),
                      .sequences = {}};
  for (const Json& sequence : members.list("sequences"))
    group.sequences.push_back(Members::number_in(sequence, where + ".sequences",
                                                 std::numeric_limits<std::int64_t>::max()));
  return group;
}

// 64 digits, in small letters.
std::string sha256_in(const Members& members, const char* name) {
  std::string digits = members.text(name);
  std::transform(digits.begin(), digits.end(), digits.begin(), [](char c) {
    return 'A' <= c && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (digits.size() != 64 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw bad_data("the plan.{} is {}: needs 64 hexadecimal digits", name,
                   json_quote(members.text(name)));
  return digits;
}

std::pair<std::int64_t, PlannedBatch> batch_in(std::string_view line) {
  const Json json = parse_strict_json(line);
  const Members members(json, "the plan", {"step", "lengths_sha256", "microbatches"});
  PlannedBatch batch;
  batch.lengths_sha256 = sha256_in(members, "lengths_sha256");
  const Json& microbatches = members.list("microbatches");
  for (std::size_t m = 0; m < microbatches.size(); ++m) {
    const Members microbatch(microbatches[m], fmt::format("microbatches[{}]", m), {"groups"});
    std::vector<SequenceGroup>& groups = batch.plan.microbatches.emplace_back();
    const Json& list = microbatch.list("groups");
    for (std::size_t g = 0; g < list.size(); ++g)
      groups.push_back(group_in(list[g], fmt::format("microbatches[{}].groups[{}]", m, g)));
  }
  return {members.number("step", std::numeric_limits<std::int64_t>::max()), std::move(batch)};
}

}  // namespace

PlannedBatches parse_batch_plans(std::string_view text, const std::string& name,
                                 const BatchLimits& limits) {
  PlannedBatches steps;
  std::size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto wrong = [&](std::string_view what) {
      return bad_data("{}: line {}: {}", name, number, what);
    };
    try {
      auto [step, batch] = batch_in(line);
      if (step < 1) throw bad_data("step is 0: steps count from 1");
      if (const std::string problem = problem_of(batch.plan, limits); !problem.empty())
        throw bad_data("{}", problem);
      if (!steps.emplace(step, std::move(batch)).second)
        throw bad_data("step {} is planned twice", step);
    } catch (const UserError& error) {
      throw wrong(error.what());
    }
  }
  if (steps.empty()) throw bad_data("{}: there is no plan in it", name);
  return steps;
}

std::string batch_plan_line(std::int64_t step, const PlannedBatch& batch) {
  Json microbatches = Json::array();
  for (const std::vector<SequenceGroup>& groups : batch.plan.microbatches) {
    Json list = Json::array();
    for (const SequenceGroup& group : groups)
      list.push_back({{"degree", group.degree},
                      {"first_rank", group.first_rank},
                      {"sequences", group.sequences}});
    microbatches.push_back({{"groups", std::move(list)}});
  }
  return Json{{"step", step},
              {"lengths_sha256", batch.lengths_sha256},
              {"microbatches", std::move(microbatches)}}
      .dump();
}

std::string lengths_text(std::span<const std::int64_t> lengths) {
  return fmt::format("{}", fmt::join(lengths, ","));
}

}  // namespace sluice
