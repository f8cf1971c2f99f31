// sluice profile CONFIG: measures how long the ops of a run take on this machine; writes a costs
// file.
#include <fmt/ranges.h>

#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cli/report.h"
#include "sluice/cli/run_config.h"
#include "sluice/plan/flexsp/run_cluster.h"
#include "sluice/runtime/profiling.h"
#include "sluice/runtime/rank_device.h"
#include "sluice/runtime/ranks.h"
#include "sluice/runtime/sequence_profiling.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/steady.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  std::string out;
  CLI::App* command = nullptr;
};

// Milliseconds that each stage's ops take for a whole microbatch, and the step that the simulator
// makes of them.
std::string summary(const Schedule& schedule, const Costs& costs) {
  TextTable table({"stage", "rank", "F ms", "I ms", "W ms", "B ms"});
  for (int stage = 0; stage < costs.num_stages(); ++stage) {
    std::vector<std::string> ranks;
    for (int pipe = 0; pipe < schedule.num_pipes(); ++pipe)
      ranks.push_back(fmt::format("{}", schedule.placement.device_of(pipe, stage)));
    std::vector<std::string> row = {fmt::format("{}", stage), join(ranks, ",")};
    for (const auto field : {&OpCosts::f, &OpCosts::i, &OpCosts::w, &OpCosts::b}) {
      double seconds = 0;
      for (int slice = 0; slice < costs.num_slices(); ++slice)
        seconds += costs.at(stage, slice).*field;
      row.push_back(fmt::format("{:.3f}", 1e3 * seconds));
    }
    table.add(row);
  }
  std::string text = table.text();
  if (!costs.links.empty()) {
    text += fmt::format("slowest link: latency {:.1f} us", 1e6 * costs.default_link.latency);
    if (costs.default_link.bytes_per_time > 0)
      text += fmt::format(", {:.2f} GB/s", costs.default_link.bytes_per_time / 1e9);
    text += '\n';
  }
  if (!costs.contention.empty())
    text += fmt::format("speed of a rank while 1 to {} ranks are busy (1: all busy): {:.3f}\n",
                        costs.contention.size(), fmt::join(costs.contention, " "));
  const Simulation simulation = simulate(schedule, costs);
  double step = simulation.makespan, bubble = simulation.bubble_rate;
  if (schedule.num_windows > 1) {  // each step runs into the next
    const SteadyWindow window = mean_window(schedule, costs);
    step = window.added;
    bubble = 1 - window.utilisation();
  }
  return text + fmt::format("simulated step of {}: {:.4g} s, of which {:.1f}% is bubble\n",
                            schedule.name, step, 100 * bubble);
}

std::string sequences_text(const SequenceProfile& profile) {
  const SequenceCosts& costs = profile.costs;
  std::string text = fmt::format(
      "sequences of s tokens: {:.3g} s^2 + {:.3g} s + {:.3g} seconds on the busiest rank, fitted "
      "to {} with a mean error of {:.1f}% (at most {:.1f}%)\n",
      costs.a1, costs.a2, costs.b1, counted(profile.points, "measurement"),
      100 * profile.fit.mean_error, 100 * profile.fit.largest_error);
  for (const auto& [degree, rate] : costs.bytes_per_s)
    text += fmt::format("all-to-all of {} ranks: {:.2f} GB/s\n", degree, rate / 1e9);
  return text;
}

// flexsp.enabled asks for what planned batches need; nothing is planned here.
bool asks_for_sequences(Config& config) {
  if (const auto problems = validate_config(config); !problems.empty())
    throw UserError(join(problems, "; "));
  const bool asked = config.flexsp.enabled;
  if (asked) config.flexsp = {};
  return asked;
}

ExitCode run(const Flags& flags) {
  OutputFlags output;
  output.out = flags.out;
  output.format("json");  // refuses another ending
  Config config = with_chosen_backend(load_run_config(flags.file, flags.command->remaining()));
  config.parallelism.costs.clear();  // what was measured before does not matter
  const bool sequences = asks_for_sequences(config);
  // Full microbatches are measured, however batches are planned.
  config = without_batch_plans(std::move(config));
  const PlannedRun planned = plan_run(config);
  const RunPlan& plan = planned.plan;
  const RankDevices devices(config.cluster, own_gpu(config.comm));
  std::vector<Fact> facts = shared_facts(plan, nullptr);
  facts.push_back({"flexsp.enabled", sequences ? "true" : "false"});
  return run_ranks(
      config.comm, plan.mesh.size(), report_error,
      [&](Communicator& world) {
        const auto stream = devices.take(world.rank());
        ProfileOptions profile;
        profile.threads_per_rank = threads_per_rank(world);
        profile.on_progress = [](const std::string& note) { say("sluice: {}\n", note); };
        Costs costs = profile_ops(plan, {.device = devices.device()}, world, profile);
        costs.measured_on->device = devices.text();
        std::string of_sequences;
        if (sequences) {
          const SequenceProfile measured =
              profile_sequences(plan, {.device = devices.device()}, world, profile);
          const flexsp::MemoryLine memory = flexsp::memory_line(plan);
          costs.flexsp = measured.costs;
          costs.flexsp->state_bytes = memory.state_bytes;
          costs.flexsp->stash_bytes_per_token = memory.stash_bytes_per_token;
          of_sequences = sequences_text(measured);
        }
        if (world.rank() != 0) return;
        output.write(costs_to_json(costs));
        if (!output.to_standard_output())
          OutputFlags().write(summary(plan.schedule, costs) + of_sequences);
        if (plan.ragged() && !sequences)
          say("sluice: microbatches were measured full, with {} each: those of data.packing = "
              "sequences mostly have fewer\n",
              counted(plan.largest_share(0).tokens, "token"));
      },
      facts);
}

}  // namespace

void add_profile(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "profile", "measure how long the ops of a training run take on this machine");
  flags->command = command;
  command->add_option("config", flags->file, "configuration in TOML (docs/configuration.md)")
      ->required();
  command
      ->add_option(
          "--out", flags->out,
          "costs file to write (docs/costs-format.md); other commands read it with --costs")
      ->type_name("FILE");
  command->allow_extras();
  command->footer(
      "Any key can be set: --section.key=value. No data is needed. With --flexsp.enabled, what "
      "sequences cost is measured, too.");
  command->callback(
      [flags, &exit_code] { exit_code = report_once([&] { return run(*flags); }, report_error); });
}

}  // namespace sluice::cli
