// sluice generate CHECKPOINT --prompt TEXT: continues a prompt.
#include <fmt/ranges.h>

#include <chrono>

#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/device_flag.h"
#include "sluice/cli/options.h"
#include "sluice/cli/output.h"
#include "sluice/runtime/generation.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string checkpoint;
  std::string prompt;
  std::string prompt_ids;
  int tokens = 200;
  double temperature = SamplingOptions().temperature;
  int top_k = 0;
  double top_p = SamplingOptions().top_p;
  int seed = 0;
  DeviceFlag device;
};

// Flushed at once, so that the text appears as it is drawn.
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

constexpr std::size_t kMaxPromptBytes = std::size_t{64} << 20;

// The line end that echo and editors put after the last line is no part of the prompt.
std::string standard_input() {
  std::string text = read_text("-", kMaxPromptBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) throw user_error("--prompt is '-': standard input is empty; needs a text");
  return text;
}

void run(const Flags& flags, at::Device device) {
  if (flags.prompt.empty() == flags.prompt_ids.empty())
    throw user_error("generate needs either --prompt TEXT or --prompt-ids 1,2,3");
  if (flags.top_p == 0)
    throw user_error("--top-p is 0: needs to be above 0; 1 draws among all tokens");
  const std::string prompt = flags.prompt == "-" ? standard_input() : flags.prompt;
  const SamplingOptions options{.num_tokens = flags.tokens,
                                .temperature = flags.temperature,
                                .top_k = flags.top_k,
                                .top_p = flags.top_p,
                                .seed = static_cast<std::uint64_t>(flags.seed)};
  TextGenerator generator(flags.checkpoint, device);
  const auto started = std::chrono::steady_clock::now();
  const std::int64_t drawn = prompt.empty() ? continue_ids(generator, flags.prompt_ids, options)
                                            : generator.continue_text(prompt, options, show);
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
  CLI::App* command = app.add_subcommand("generate", "continue a prompt with a checkpoint's model");
  command
      ->add_option("checkpoint", flags->checkpoint,
                   "checkpoint folder, or a folder of checkpoints (its latest is used)")
      ->required();
  command
      ->add_option("--prompt", flags->prompt,
                   "text to continue; - reads standard input, without the line end at its end")
      ->type_name("TEXT");
  command
      ->add_option("--prompt-ids", flags->prompt_ids,
                   "token numbers to continue, for any vocabulary; prints numbers")
      ->type_name("1,2,3");
  add_int(*command, "--tokens", flags->tokens, 1, 1 << 30, "draw at most N tokens (default 200)");
  add_number(*command, "--temperature", flags->temperature, 0, 100,
             "below 1 likely tokens are drawn more often, above 1 less; 0: always the likeliest "
             "(default 0.8)");
  add_int(*command, "--top-k", flags->top_k, 0, 1 << 30,
          "draw among the N likeliest tokens (default 0: all)");
  add_number(
      *command, "--top-p", flags->top_p, 0, 1,
      "draw among the likeliest tokens whose probabilities sum to X, after --temperature and "
      "--top-k (default 1: all)");
  add_int(*command, "--seed", flags->seed, 0, INT32_MAX,
          "of the random draws; another seed gives another text (default 0)");
  flags->device.add(*command);
  command->callback(
      [flags] { flags->device.run([&](at::Device device) { run(*flags, device); }); });
}

}  // namespace sluice::cli
