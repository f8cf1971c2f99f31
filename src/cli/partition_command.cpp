// sluice partition CONFIG: how many layers each stage gets, and the work, memory and time that this
// gives.
#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cli/run_config.h"
#include "sluice/report/partition.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  std::string costs;
  std::string memory;
  OutputFlags output;
  CLI::App* command = nullptr;
};

void run(const Flags& flags) {
  const Format format = flags.output.format("text,json");
  std::vector<std::string> words = flags.command->remaining();
  for (const std::string& word : words)
    if (word.starts_with("--parallelism.layers_per_stage"))
      throw user_error("{}: partition chooses the layers per stage itself; leave the flag out",
                       word);
  if (!flags.memory.empty())
    for (const double memory : parse_numbers("--memory-cap-mib", flags.memory))
      if (memory <= 0)
        throw user_error("--memory-cap-mib is '{}': needs numbers above 0", flags.memory);
  words.push_back("--parallelism.layers_per_stage=auto");
  if (!flags.costs.empty()) words.push_back("--parallelism.costs=" + flags.costs);
  if (!flags.memory.empty()) words.push_back("--parallelism.device_memory_mib=" + flags.memory);
  const PlannedRun planned = plan_open_run(with_chosen_backend(load_run_config(flags.file, words)));
  for (const std::string& note : planned.notes)
    say("sluice: {}\n", note);
  const PartitionReport report = partition_report(planned);
  flags.output.write(format == Format::json ? partition_json(report) : partition_text(report));
}

}  // namespace

void add_partition(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "partition", "choose the layers per stage that make the slowest device fastest");
  flags->command = command;
  command->add_option("config", flags->file, "configuration in TOML (docs/configuration.md)")
      ->required();
  command->add_option("--costs", flags->costs, "costs file of sluice profile (parallelism.costs)")
      ->type_name("FILE");
  command
      ->add_option(
          "--memory-cap-mib", flags->memory,
          "memory limit in MiB, of every device or one per device (parallelism.device_memory_mib)")
      ->type_name("X[,X..]");
  flags->output.add(*command, "text (default), json");
  command->allow_extras();
  command->footer("Any key can be set: --section.key=value. No data is needed.");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
