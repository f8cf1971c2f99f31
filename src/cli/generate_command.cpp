// sluice generate CHECKPOINT --prompt TEXT: what the model makes of it.
#include <fmt/ranges.h>

#include <chrono>

#include "base/say.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/device_flag.h"
#include "cli/options.h"
#include "cli/output.h"
#include "runtime/generation.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string checkpoint;
  std::string prompt;
  std::string prompt_ids;
  int tokens = 200;
  double temperature = SamplingOptions().temperature;
  int top_k = 0;
  int seed = 0;
  DeviceFlag device;
};

// At once, so that people see the text come.
void show(std::string_view text) { OutputFlags().write(std::string(text)); }

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const std::string_view part : split(text, ',')) {
    const auto id = parse_int(trim(part));
    if (!id || *id < 0 || *id > INT32_MAX)
      throw user_error("--prompt-ids has '{}': needs token numbers such as 1,2,3", part);
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

std::int64_t continue_ids(TextGenerator& generator, const std::string& prompt,
                          const SamplingOptions& options) {
  const std::vector<std::int32_t> ids = parse_ids(prompt);
  generator.check_prompt(ids);
  show(fmt::format("{}", fmt::join(ids, ",")));
  return generator.continue_tokens(ids, options, [](std::int32_t token) {
    show(fmt::format(",{}", token));
    return true;
  });
}

void run(const Flags& flags, at::Device device) {
  if (flags.prompt.empty() == flags.prompt_ids.empty())
    throw user_error("generate needs one of --prompt TEXT and --prompt-ids 1,2,3");
  const SamplingOptions options{.num_tokens = flags.tokens,
                                .temperature = flags.temperature,
                                .top_k = flags.top_k,
                                .seed = static_cast<std::uint64_t>(flags.seed)};
  TextGenerator generator(flags.checkpoint, device);
  const auto started = std::chrono::steady_clock::now();
  const std::int64_t drawn = flags.prompt.empty()
                                 ? continue_ids(generator, flags.prompt_ids, options)
                                 : generator.continue_text(flags.prompt, options, show);
  show("\n");
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  say("sluice: {}{} in {:.2f} s: {:.0f} tokens/s\n", counted(drawn, "token"),
      drawn < options.num_tokens ? ", to the end of the document," : "", seconds,
      static_cast<double>(drawn) / seconds);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("generate", "sample text from a checkpoint");
  command
      ->add_option("checkpoint", flags->checkpoint,
                   "checkpoint folder, or a folder of checkpoints (its latest is used)")
      ->required();
  command->add_option("--prompt", flags->prompt, "text to continue")->type_name("TEXT");
  command
      ->add_option("--prompt-ids", flags->prompt_ids,
                   "tokens to continue, of any vocabulary; prints tokens")
      ->type_name("1,2,3");
  add_int(*command, "--tokens", flags->tokens, 1, 1 << 30, "tokens drawn at most (default 200)");
  add_number(*command, "--temperature", flags->temperature, 0, 100,
             "below 1 safer, above 1 wilder; 0: the likeliest token, always (default 0.8)");
  add_int(*command, "--top-k", flags->top_k, 0, 1 << 30,
          "draw among the K likeliest tokens (default 0: all)");
  add_int(*command, "--seed", flags->seed, 0, INT32_MAX, "another seed, another text (default 0)");
  flags->device.add(*command);
  command->callback(
      [flags] { flags->device.run([&](at::Device device) { run(*flags, device); }); });
}

}  // namespace sluice::cli
