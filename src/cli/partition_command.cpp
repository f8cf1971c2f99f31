// sluice partition CONFIG: how many layers each stage gets, and the work, memory and time that this
// gives.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "cli/balance.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/run_setup.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using Layers = std::vector<std::int64_t>;

struct Flags {
  std::string file;
  std::string costs;
  std::string memory;
  OutputFlags output;
  CLI::App* command = nullptr;
};

// What a split gives.
struct Outcome {
  Layers layers;
  std::vector<double> stage_share;  // of all work
  std::vector<double> device_share;
  std::vector<double> bytes;  // by device
  double step = 0;
};

Outcome outcome_of(const Balance& balance, const Schedule& schedule, const Layers& layers) {
  Outcome out;
  out.layers = layers;
  const PartWork& work = balance.query.work;
  for (const std::int64_t n : layers)
    out.stage_share.push_back(static_cast<double>(n) * work.layer);
  out.stage_share.front() += work.embedding;
  out.stage_share.back() += work.head;
  out.device_share = device_work(balance.query, layers);
  const double all = std::accumulate(out.stage_share.begin(), out.stage_share.end(), 0.0);
  for (auto* shares : {&out.stage_share, &out.device_share})
    for (double& share : *shares)
      share /= all;
  out.bytes = device_bytes(balance.query, layers);
  out.step = step_time(balance, schedule, layers);
  return out;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string mebibytes(double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); }

std::vector<int> devices_of(const Placement& placement, int stage) {
  std::vector<int> devices;
  for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
    devices.push_back(placement.device_of(pipe, stage));
  return devices;
}

std::string text(const Schedule& schedule, const Balance& balance, const Outcome& best,
                 const std::optional<Outcome>& even) {
  TextTable stages({"stage", "device", "layers", "work", "even", "work"});
  TextTable devices({"device", "work", "MiB", "even work", "even MiB"});
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    stages.add({fmt::format("{}", stage),
                fmt::format("{}", fmt::join(devices_of(schedule.placement, stage), ",")),
                fmt::format("{}", best.layers[s]), percent(best.stage_share[s]),
                even ? fmt::format("{}", even->layers[s]) : "-",
                even ? percent(even->stage_share[s]) : "-"});
  }
  for (std::size_t d = 0; d < best.bytes.size(); ++d)
    devices.add({fmt::format("{}", d), percent(best.device_share[d]), mebibytes(best.bytes[d]),
                 even ? percent(even->device_share[d]) : "-",
                 even ? mebibytes(even->bytes[d]) : "-"});
  std::string out = fmt::format(
      "{}: {} on {}, {}; {}\n{}\n{}", schedule.name, counted(balance.query.layers, "layer"),
      counted(schedule.num_devices(), "device"), counted(schedule.num_microbatches, "microbatch"),
      balance.measured ? "work measured by a profile" : "work counted in FLOPs", stages.text(),
      devices.text());
  if (balance.measured) out += fmt::format("simulated step: {:.4g} s", best.step);
  if (even)
    out += balance.measured ? fmt::format(", with even layers {:.4g} s (ratio {:.3f})", even->step,
                                          best.step / even->step)
                            : fmt::format("simulated step: {:.3f} of the time with even layers",
                                          best.step / even->step);
  if (balance.measured || even) out += "\n";
  return out + fmt::format("parallelism.layers_per_stage = [{}]\n", fmt::join(best.layers, ", "));
}

std::string json(const Schedule& schedule, const Balance& balance, const Outcome& best,
                 const std::optional<Outcome>& even) {
  const auto fields = [&](const Outcome& outcome) {
    return Json{{"layers", outcome.layers},
                {"stage_work", outcome.stage_share},
                {"device_work", outcome.device_share},
                {"device_bytes", outcome.bytes},
                {"step", outcome.step}};
  };
  Json placement = Json::array();
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    placement.push_back(devices_of(schedule.placement, stage));
  Json out = {{"schema", 1},
              {"schedule", schedule.name},
              {"devices", schedule.num_devices()},
              {"microbatches", schedule.num_microbatches},
              {"measured", balance.measured},
              {"devices_of_stage", placement},
              {"auto", fields(best)},
              {"even", even ? fields(*even) : Json()}};
  return out.dump(2) + "\n";
}

void run(const Flags& flags) {
  const Format format = flags.output.format("text,json");
  std::vector<std::string> words = flags.command->remaining();
  for (const std::string& word : words)
    if (word.starts_with("--parallelism.layers_per_stage"))
      throw user_error("{}: partition chooses the layers per stage itself; leave the flag out",
                       word);
  if (const auto memory = parse_double(flags.memory);
      !flags.memory.empty() && !(memory && *memory > 0))
    throw user_error("--memory-cap-mib is '{}': needs a number above 0", flags.memory);
  words.push_back("--parallelism.layers_per_stage=auto");
  if (!flags.costs.empty()) words.push_back("--parallelism.partition_costs=" + flags.costs);
  if (!flags.memory.empty()) words.push_back("--parallelism.device_memory_mib=" + flags.memory);
  const LoadedConfig loaded = load_run_config(flags.file, words);
  if (const auto problems = validate_config(loaded.values); !problems.empty())
    throw UserError(join(problems, "; "));
  const Config config = resolve_config(loaded.values);
  const Schedule schedule = make_schedule(config);
  const Balance balance = balance_of(config, schedule);
  const Outcome best = outcome_of(balance, schedule, best_partition(balance.query));
  std::optional<Outcome> even;
  if (config.model.layers >= schedule.num_stages())
    even = outcome_of(balance, schedule, even_layers(config.model.layers, schedule.num_stages()));
  flags.output.write(format == Format::json ? json(schedule, balance, best, even)
                                            : text(schedule, balance, best, even));
}

}  // namespace

void add_partition(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "partition", "choose the layers per stage that make the slowest device fastest");
  flags->command = command;
  command->add_option("config", flags->file, "configuration in TOML (docs/configuration.md)")
      ->required();
  command
      ->add_option("--costs", flags->costs,
                   "costs file of sluice profile (parallelism.partition_costs)")
      ->type_name("FILE");
  command
      ->add_option("--memory-cap-mib", flags->memory,
                   "memory limit of a device in MiB (parallelism.device_memory_mib)")
      ->type_name("X");
  flags->output.add(*command, "text (default), json");
  command->allow_extras();
  command->footer("Any key can be set: --section.key=value. No data is needed.");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
