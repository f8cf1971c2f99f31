// Reads the costs file: JSON, seconds and bytes. Strictly, because the JSON library would silently
// turn -1 into a huge number and 1.9 into 1.
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/cost/costs.h"
#include "sluice/schedule/strict_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

void check_keys(const Json& object, const std::string& where,
                const std::vector<std::string>& known) {
  if (!object.is_object())
    throw user_error("costs: {} is {}: needs an object", where, shown(object));
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    throw user_error("costs: {} has an unknown key '{}'{}; known are {}", where, key,
                     nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest),
                     join(known, ", "));
  }
}

double amount(const Json& value, const std::string& where) {
  if (!value.is_number()) throw user_error("costs: {} is {}: needs a number", where, shown(value));
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < 0 || number > 1e18)
    throw user_error("costs: {} is {}: needs a number from 0 to 1e18", where, shown(value));
  return number;
}

std::int64_t whole_number(const Json& value, const std::string& where, const char* what) {
  const double number = amount(value, where);
  if (number != std::floor(number) || number > 1e9)
    throw user_error("costs: {} is {}: needs {}", where, shown(value), what);
  return static_cast<std::int64_t>(number);
}

// A list with one entry per slice, or per whatever else.
std::vector<double> amounts(const Json& value, const std::string& where, const char* of) {
  if (!value.is_array() || value.empty())
    throw user_error("costs: {} is {}: needs a list with one number per {}", where, shown(value),
                     of);
  std::vector<double> out;
  for (std::size_t c = 0; c < value.size(); ++c)
    out.push_back(amount(value[c], fmt::format("{}[{}]", where, c)));
  return out;
}

std::vector<double> per_slice(const Json& value, const std::string& where) {
  return amounts(value, where, "slice");
}

struct StageEntry {
  bool split = true;  // I and W are known apart
  double reduce = 0, update = 0;
  std::int64_t layers = -1;
  std::vector<double> f, i, w, b, after_f, after_i, kv, kv_gradient, sent_forward, sent_backward;
};

// A list, or one number for the whole, of which slices take equal shares where nothing else is
// known.
std::vector<double> shared(const Json& stage, const char* key, const std::string& where,
                           std::size_t slices, const char* of) {
  if (!stage.contains(key)) return std::vector<double>(slices, 0.0);
  const Json& value = stage[key];
  const std::string name = where + "." + key;
  if (value.is_array()) return amounts(value, name, of);
  return std::vector<double>(slices, amount(value, name) / static_cast<double>(slices));
}

// The lists of `stage` have one number per `of`.
StageEntry parse_lists(const Json& stage, const std::string& where, const char* of) {
  StageEntry entry;
  const auto required = [&](const char* key) {
    if (!stage.contains(key)) throw user_error("costs: {} has no '{}'", where, key);
    return amounts(stage[key], where + "." + key, of);
  };
  entry.f = required("F");
  const std::size_t slices = entry.f.size();
  if (!stage.contains("I") && !stage.contains("W") && stage.contains("B")) {
    // Only the full backward was measured: enough for schedules that do not split it.
    entry.split = false;
    entry.b = required("B");
    entry.i = entry.b;
    entry.w.assign(slices, 0.0);
  } else {
    entry.i = required("I");
    entry.w = required("W");
    if (stage.contains("B"))
      entry.b = required("B");
    else
      for (std::size_t c = 0; c < std::min(entry.i.size(), entry.w.size()); ++c)
        entry.b.push_back(entry.i[c] + entry.w[c]);
  }
  entry.after_f = shared(stage, "after_F", where, slices, of);
  entry.after_i =
      stage.contains("after_I") ? shared(stage, "after_I", where, slices, of) : entry.after_f;
  entry.kv = shared(stage, "kv_bytes", where, slices, of);
  entry.kv_gradient = shared(stage, "kv_gradient_bytes", where, slices, of);
  entry.sent_forward = shared(stage, "sent_forward", where, slices, of);
  entry.sent_backward = shared(stage, "sent_backward", where, slices, of);
  for (const auto* list : {&entry.i, &entry.w, &entry.b, &entry.after_f, &entry.after_i, &entry.kv,
                           &entry.kv_gradient, &entry.sent_forward, &entry.sent_backward})
    if (list->size() != slices)
      throw user_error("costs: {} has lists of {} and {} {}s: all need one number per {}", where,
                       slices, list->size(), of, of);
  return entry;
}

StageEntry parse_stage(const Json& stage, const std::string& where) {
  check_keys(stage, where,
             {"F", "I", "W", "B", "after_F", "after_I", "sent_forward", "sent_backward", "kv_bytes",
              "kv_gradient_bytes", "reduce_bytes", "update", "layers"});
  StageEntry entry = parse_lists(stage, where, "slice");
  if (stage.contains("reduce_bytes"))
    entry.reduce = amount(stage["reduce_bytes"], where + ".reduce_bytes");
  if (stage.contains("update")) entry.update = amount(stage["update"], where + ".update");
  if (stage.contains("layers"))
    entry.layers = whole_number(stage["layers"], where + ".layers", "a number of layers");
  return entry;
}

Link parse_link(const Json& link, const std::string& where) {
  Link out;
  if (link.contains("latency_s")) out.latency = amount(link["latency_s"], where + ".latency_s");
  if (link.contains("bytes_per_s")) {
    out.bytes_per_time = amount(link["bytes_per_s"], where + ".bytes_per_s");
    if (out.bytes_per_time == 0)
      throw user_error("costs: {}.bytes_per_s is 0: leave it out for a link without a limit",
                       where);
  }
  return out;
}

Json parse_file(std::string_view text) {
  Json json;
  try {
    json = parse_strict_json(text);
  } catch (const UserError& error) {
    throw user_error("costs: {}", error.what());
  }
  check_keys(json, "the file",
             {"schema", "measured_on", "slice_sizes", "stages", "per_microbatch", "links",
              "default_link", "data_link", "overlap", "contention", "flexsp"});
  if (!json.contains("schema") || json["schema"] != 1)
    throw user_error("costs: schema is {}: this version reads schema 1",
                     json.contains("schema") ? shown(json["schema"]) : "missing");
  return json;
}

// Bytes per second of an all-to-all, by degree.
std::map<int, double> parse_bandwidths(const Json& json) {
  const std::string where = "flexsp.bytes_per_s";
  if (!json.is_object())
    throw user_error("costs: {} is {}: needs an object with one number per degree", where,
                     shown(json));
  std::map<int, double> out;
  for (const auto& [key, value] : json.items()) {
    const auto degree = parse_int(key);
    if (!degree || *degree < 2 || *degree > 1 << 20 || (*degree & (*degree - 1)) != 0)
      throw user_error("costs: {} has '{}': a degree is a power of two from 2 to 1048576", where,
                       key);
    const std::string name = fmt::format("{}.{}", where, key);
    const double rate = amount(value, name);
    if (rate <= 0)
      throw user_error("costs: {} is 0: leave out a degree that is not to be used", name);
    if (rate < 1)
      throw user_error(
          "costs: {} is {}: needs bytes per second, at least 1; leave out a degree that is not to "
          "be used",
          name, number(rate));
    out[static_cast<int>(*degree)] = rate;
  }
  return out;
}

// All of its entries are required.
SequenceCosts parse_flexsp(const Json& json) {
  using Field = std::pair<const char*, double SequenceCosts::*>;
  constexpr Field kFields[] = {
      {"a1", &SequenceCosts::a1},
      {"a2", &SequenceCosts::a2},
      {"b1", &SequenceCosts::b1},
      {"stash_bytes_per_token", &SequenceCosts::stash_bytes_per_token},
      {"state_bytes", &SequenceCosts::state_bytes},
      {"all_to_all_bytes_per_token", &SequenceCosts::all_to_all_bytes_per_token}};
  std::vector<std::string> required = {"bytes_per_s", "heads"};
  for (const auto& [key, field] : kFields)
    required.emplace_back(key);
  std::vector<std::string> known = required;
  known.insert(known.end(), {"device_layers", "parameter_shards"});
  check_keys(json, "flexsp", known);
  for (const std::string& key : required)
    if (!json.contains(key)) throw user_error("costs: flexsp has no '{}'", key);
  SequenceCosts costs;
  for (const auto& [key, field] : kFields)
    costs.*field = amount(json[key], fmt::format("flexsp.{}", key));
  for (const auto& [key, field] : {kFields[0], kFields[1], kFields[2]})
    if (constexpr double kMostSeconds = 1e6; costs.*field > kMostSeconds)
      throw user_error("costs: flexsp.{} is {}: needs seconds up to {}", key, number(costs.*field),
                       number(kMostSeconds));
  if (costs.a1 <= 0 && costs.a2 <= 0)
    throw user_error("costs: flexsp.a1 and flexsp.a2 are 0: tokens must take time");
  if (costs.stash_bytes_per_token <= 0)
    throw user_error("costs: flexsp.stash_bytes_per_token is 0: a token must take memory");
  costs.bytes_per_s = parse_bandwidths(json["bytes_per_s"]);
  costs.heads = whole_number(json["heads"], "flexsp.heads", "a number of heads");
  if (costs.heads < 1) throw user_error("costs: flexsp.heads is 0: needs at least 1");
  if (json.contains("device_layers")) {
    const Json& layers = json["device_layers"];
    for (std::size_t d = 0; d < amounts(layers, "flexsp.device_layers", "device").size(); ++d)
      costs.device_layers.push_back(whole_number(
          layers[d], fmt::format("flexsp.device_layers[{}]", d), "a number of layers"));
  }
  if (json.contains("parameter_shards"))
    costs.parameter_shards =
        whole_number(json["parameter_shards"], "flexsp.parameter_shards", "a number of ranks");
  return costs;
}

// All of its entries are required: one that is missing could not be compared.
MeasuredOn parse_measured_on(const Json& json) {
  std::vector<std::string> known = {"model"}, known_of_model;
  for (const MeasuredField& field : measured_fields())
    (field.of_model ? known_of_model : known).emplace_back(field.name);
  check_keys(json, "measured_on", known);
  if (!json.contains("model")) throw user_error("costs: measured_on has no 'model'");
  check_keys(json["model"], "measured_on.model", known_of_model);
  MeasuredOn on;
  for (const MeasuredField& field : measured_fields()) {
    const Json& object = field.of_model ? json["model"] : json;
    const std::string where = field.of_model ? "measured_on.model" : "measured_on";
    const std::string name = fmt::format("{}.{}", where, field.name);
    if (!object.contains(field.name)) throw user_error("costs: {} has no '{}'", where, field.name);
    const Json& value = object[field.name];
    if (field.number) {
      on.*field.number = whole_number(value, name, "a whole number");
    } else {
      if (!value.is_string()) throw user_error("costs: {} is {}: needs a text", name, shown(value));
      on.*field.text = value.get<std::string>();
    }
  }
  return on;
}

// Tokens of each slice; they make up the sequence.
std::vector<std::int64_t> parse_slice_sizes(const Json& json, std::size_t slices,
                                            const std::optional<MeasuredOn>& measured_on) {
  const std::vector<double> tokens = per_slice(json, "slice_sizes");
  if (tokens.size() != slices)
    throw user_error(
        "costs: slice_sizes has {} numbers, and the stages have {} slices: give one each",
        tokens.size(), slices);
  std::vector<std::int64_t> sizes;
  std::int64_t sum = 0;
  for (std::size_t c = 0; c < tokens.size(); ++c) {
    const std::string where = fmt::format("slice_sizes[{}]", c);
    sizes.push_back(whole_number(json[c], where, "a number of tokens"));
    if (sizes.back() < 1) throw user_error("costs: {} is 0: a slice has at least one token", where);
    sum += sizes.back();
  }
  if (sum > 1'000'000'000)
    throw user_error("costs: slice_sizes sums to {}: a sequence has at most 1000000000 tokens",
                     sum);
  if (measured_on && measured_on->sequence_length != sum)
    throw user_error("costs: slice_sizes sums to {}, but measured_on.sequence_length is {}", sum,
                     measured_on->sequence_length);
  return sizes;
}

std::vector<StageEntry> parse_stages(const Json& json) {
  if (!json.contains("stages") || !json["stages"].is_array() || json["stages"].empty())
    throw user_error("costs: stages is missing: needs a list with one object per stage");
  std::vector<StageEntry> stages;
  for (std::size_t s = 0; s < json["stages"].size(); ++s)
    stages.push_back(parse_stage(json["stages"][s], fmt::format("stages[{}]", s)));
  return stages;
}

// Microbatches of unequal sequences: for each an object with the lists of a stage, over all stages.
std::vector<OpCosts> parse_microbatches(const Json& json, const Json& stages, const Costs& costs) {
  if (!json.is_array() || json.empty())
    throw user_error("costs: per_microbatch is {}: needs a list with one object per microbatch",
                     shown(json));
  if (costs.num_slices() > 1)
    throw user_error(
        "costs: per_microbatch is given, and the stages have {} slices: unequal microbatches are "
        "not sliced; leave one of them out",
        costs.num_slices());
  std::vector<OpCosts> table;
  for (std::size_t m = 0; m < json.size(); ++m) {
    const std::string where = fmt::format("per_microbatch[{}]", m);
    check_keys(json[m], where,
               {"F", "I", "W", "B", "after_F", "after_I", "sent_forward", "sent_backward"});
    for (const auto& [key, value] : json[m].items())
      if (!value.is_array())
        throw user_error("costs: {}.{} is {}: needs a list with one number per stage", where, key,
                         shown(value));
    // What a microbatch does not say would count as nothing.
    for (const char* key : {"after_F", "after_I", "sent_forward", "sent_backward"})
      if (!json[m].contains(key) &&
          std::any_of(stages.begin(), stages.end(), [&](const Json& s) { return s.contains(key); }))
        throw user_error("costs: {} has no '{}', but stages has: give it for every microbatch",
                         where, key);
    const StageEntry e = parse_lists(json[m], where, "stage");
    if (static_cast<int>(e.f.size()) != costs.num_stages())
      throw user_error("costs: {} has {}, but stages has {}: give one number for each", where,
                       counted(std::ssize(e.f), "stage"), costs.num_stages());
    if (!e.split && costs.unsplit_stage < 0)
      throw user_error("costs: {} has B alone, but stages has I and W: give I and W", where);
    for (std::size_t s = 0; s < e.f.size(); ++s)
      table.push_back({e.f[s], e.i[s], e.w[s], e.b[s], e.after_f[s], e.after_i[s], 0, 0,
                       e.sent_forward[s], e.sent_backward[s]});
  }
  return table;
}

// What the file says of stages and of links that have no ends.
Costs costs_of(const Json& json, const std::vector<StageEntry>& stages) {
  const std::size_t slices = stages.front().f.size();
  std::vector<OpCosts> table;
  for (const StageEntry& e : stages)
    for (std::size_t c = 0; c < e.f.size(); ++c)
      table.push_back({e.f[c], e.i[c], e.w[c], e.b[c], e.after_f[c], e.after_i[c],
                       slices > 1 ? e.kv[c] : 0, slices > 1 ? e.kv_gradient[c] : 0,
                       e.sent_forward[c], e.sent_backward[c]});
  Costs costs(static_cast<int>(stages.size()), static_cast<int>(slices), std::move(table));
  costs.measured = true;
  if (json.contains("measured_on")) costs.measured_on = parse_measured_on(json["measured_on"]);
  if (json.contains("slice_sizes"))
    costs.slice_sizes = parse_slice_sizes(json["slice_sizes"], slices, costs.measured_on);
  if (std::any_of(stages.begin(), stages.end(), [](const auto& e) { return e.reduce > 0; }))
    for (const StageEntry& e : stages)
      costs.reduce.push_back(e.reduce);
  if (std::any_of(stages.begin(), stages.end(), [](const auto& e) { return e.update > 0; }))
    for (const StageEntry& e : stages)
      costs.update.push_back(e.update);
  if (std::all_of(stages.begin(), stages.end(), [](const auto& e) { return e.layers >= 0; }))
    for (const StageEntry& e : stages)
      costs.layers.push_back(e.layers);
  const auto unsplit =
      std::find_if(stages.begin(), stages.end(), [](const auto& e) { return !e.split; });
  if (unsplit != stages.end()) costs.unsplit_stage = static_cast<int>(unsplit - stages.begin());
  if (json.contains("per_microbatch"))
    costs.set_microbatches(parse_microbatches(json["per_microbatch"], json["stages"], costs));
  if (json.contains("contention") && json["contention"] != Json::array())
    costs.contention = amounts(json["contention"], "contention", "device");
  for (const auto& [key, link] :
       {std::pair{"default_link", &costs.default_link}, std::pair{"data_link", &costs.data_link}}) {
    if (!json.contains(key)) continue;
    check_keys(json[key], key, {"latency_s", "bytes_per_s"});
    *link = parse_link(json[key], key);
  }
  if (json.contains("overlap")) {
    costs.overlap = amount(json["overlap"], "overlap");
    if (costs.overlap > 1)
      throw user_error("costs: overlap is {}: needs a share from 0 to 1", number(costs.overlap));
  }
  if (json.contains("flexsp")) costs.flexsp = parse_flexsp(json["flexsp"]);
  return costs;
}

}  // namespace

Costs stage_costs_from_json(std::string_view text, bool of_stages_alone) {
  Json json = parse_file(text);
  if (of_stages_alone) json.erase("per_microbatch");
  const std::vector<StageEntry> stages = parse_stages(json);
  for (std::size_t s = 1; s < stages.size(); ++s)
    if (stages[s].f.size() != stages[0].f.size())
      throw user_error("costs: stages[0] has {} slices, but stages[{}] has {}: all need the same",
                       stages[0].f.size(), s, stages[s].f.size());
  if (json.contains("per_microbatch"))
    throw user_error(
        "costs: per_microbatch is given: only schedule and simulate take it, without --redeal; "
        "leave it out here");
  return costs_of(json, stages);
}

SequenceCosts sequence_costs_from_json(std::string_view text) {
  const Json json = parse_file(text);
  if (!json.contains("flexsp"))
    throw user_error("costs: no section 'flexsp', which says what shared sequences cost");
  return parse_flexsp(json["flexsp"]);
}

Costs costs_from_json(std::string_view text, const Schedule& schedule) {
  const Json json = parse_file(text);
  const std::vector<StageEntry> stages = parse_stages(json);
  if (static_cast<int>(stages.size()) != schedule.num_stages())
    throw user_error(
        "costs: {} stages, but {} has {}: profile that schedule, or use schedule --redeal",
        stages.size(), schedule.name, schedule.num_stages());
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (static_cast<int>(stages[s].f.size()) != schedule.num_slices)
      throw user_error("costs: stages[{}] has {} slices, but {} has {}: profile the same slices", s,
                       stages[s].f.size(), schedule.name, schedule.num_slices);
  Costs costs = costs_of(json, stages);
  if (const int m = costs.num_microbatches(); m > 0 && m != schedule.num_microbatches)
    throw user_error("costs: per_microbatch has {}, but {} has {}: give one object for each",
                     counted(m, "microbatch"), schedule.name, schedule.num_microbatches);
  if (schedule.has(OpKind::I) || schedule.has(OpKind::W)) check_split(costs, schedule.name);
  if (!costs.contention.empty())
    check_contention(costs.contention, schedule.num_devices(), "costs: contention");
  if (json.contains("links")) {
    if (!json["links"].is_array()) throw user_error("costs: links needs a list of objects");
    for (std::size_t n = 0; n < json["links"].size(); ++n) {
      const Json& link = json["links"][n];
      const std::string where = fmt::format("links[{}]", n);
      check_keys(link, where, {"from", "to", "latency_s", "bytes_per_s"});
      if (!link.contains("from") || !link.contains("to"))
        throw user_error("costs: {} needs 'from' and 'to'", where);
      const auto from = whole_number(link["from"], where + ".from", "a device number");
      const auto to = whole_number(link["to"], where + ".to", "a device number");
      for (const auto device : {from, to})
        if (device >= schedule.num_devices())
          throw user_error("costs: {} names device {}: the schedule has devices 0..{}", where,
                           device, schedule.num_devices() - 1);
      const std::pair<int, int> pair = {static_cast<int>(from), static_cast<int>(to)};
      if (!costs.links.try_emplace(pair, parse_link(link, where)).second)
        throw user_error("costs: {} repeats the link from {} to {}", where, from, to);
    }
  }
  return costs;
}

}  // namespace sluice
