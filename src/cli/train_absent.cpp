// The train command of a program built without torch.
#include "base/error.h"
#include "cli/commands.h"

namespace sluice::cli {

void add_train(CLI::App& app, ExitCode&) {
  CLI::App* command =
      app.add_subcommand("train", "train a model through a schedule (./sluice train CONFIG)");
  command->allow_extras();
  command->callback([] {
    throw user_error(
        "this program was built without torch: run ./sluice train, which fetches it and builds "
        "the engine");
  });
}

}  // namespace sluice::cli
