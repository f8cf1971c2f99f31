// The commands of sluice-engine, in a program built without it.
#include <array>
#include <utility>

#include "sluice/base/error.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/train.h"

namespace sluice::cli {
namespace {

// The script ./sluice has the same names.
constexpr std::array<std::pair<const char*, const char*>, 6> kCommands = {
    {{"generate", "sample text from a checkpoint (./sluice generate CHECKPOINT)"},
     {"evaluate", "a checkpoint's loss on tokens (./sluice evaluate CHECKPOINT --tokens FILE)"},
     {"inspect", "what a checkpoint holds (./sluice inspect CHECKPOINT)"},
     {"import", "weights from Hugging Face's form (./sluice import HF_DIR --out FOLDER)"},
     {"export", "weights for transformers (./sluice export CHECKPOINT --out HF_DIR)"},
     {"profile", "measure what the ops of a training run cost (./sluice profile CONFIG)"}}};

UserError absent(const std::string& command) {
  return user_error(
      "this program was built without torch: run sluice-engine {0}, or in a checkout ./sluice {0}, "
      "which fetches torch and builds it",
      command);
}

}  // namespace

void add_engine_commands(CLI::App& app, ExitCode&) {
  for (const auto& [name, help] : kCommands) {
    CLI::App* command = app.add_subcommand(name, help);
    command->allow_extras();
    command->callback([name = name] { throw absent(name); });
  }
}

ExitCode train(const TrainRequest&) { throw absent("train"); }

}  // namespace sluice::cli
