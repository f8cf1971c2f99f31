// sluice evaluate CHECKPOINT --tokens FILE: the loss of its model on them, comparable with that of
// any other program.
#include <cmath>
#include <filesystem>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/device_flag.h"
#include "cli/output.h"
#include "data/token_lines.h"
#include "runtime/evaluation.h"
#include "runtime/files/safetensors.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string checkpoint;
  std::string tokens;
  std::string logits;
  int sequence_length = 0;
  bool per_token = false;
  DeviceFlag device;
  OutputFlags output;
};

std::unique_ptr<TokenSource> open_tokens(const std::string& path, std::int64_t vocab_size) {
  std::error_code ignored;
  if (path.ends_with(".bin") || path.ends_with(".idx") ||
      std::filesystem::exists(path + ".idx", ignored))
    return open_token_source(path, DataFormat::megatron);
  return read_token_lines(path, vocab_size);
}

// Nine digits tell every float from its neighbours; null and - are a document's first token, and
// what is no number.
std::string loss_text(double loss, const char* none) {
  return std::isfinite(loss) ? fmt::format("{:.9g}", loss) : none;
}

std::string json(const Evaluation& result, bool per_token) {
  std::string list;
  if (per_token) {
    std::vector<std::string> losses;
    for (const double loss : result.per_token)
      losses.push_back(loss_text(loss, "null"));
    list = fmt::format(",\n  \"per_token\": [{}]", join(losses, ", "));
  }
  return fmt::format("{{\n  \"loss\": {},\n  \"tokens\": {},\n  \"sequence_length\": {}{}\n}}\n",
                     loss_text(result.loss, "null"), result.tokens, result.sequence_length, list);
}

std::string text(const Evaluation& result, bool per_token) {
  std::string out =
      fmt::format("loss {} nats per token over {} tokens, in sequences of at most {}\n",
                  loss_text(result.loss, "(not a number)"),
                  with_commas(std::to_string(result.tokens)), result.sequence_length);
  if (per_token)
    for (const double loss : result.per_token)
      out += loss_text(loss, "-") + "\n";
  return out;
}

void run(const Flags& flags, at::Device device) {
  const bool as_json = flags.output.format("text,json") == Format::json;
  LoadedModel model = load_model(flags.checkpoint, device);
  const std::int64_t vocab_size = model.config.model.vocab_size;
  const std::unique_ptr<TokenSource> source = open_tokens(flags.tokens, vocab_size);
  EvaluationOptions options{.sequence_length = flags.sequence_length, .on_logits = {}};
  RealFileSystem files;
  std::optional<SafetensorsWriter> logits;
  if (!flags.logits.empty()) {
    logits.emplace(
        files, flags.logits,
        std::vector<TensorSpec>{{"logits", Dtype::f32, {source->num_tokens(), vocab_size}}});
    options.on_logits = [&](std::span<const float> rows) { logits->write(std::as_bytes(rows)); };
  }
  const Evaluation result = evaluate(model, *source, options);
  if (logits) logits->commit();
  if (result.tokens == 0)
    throw UserError(
        fmt::format("{} has no token with another before it: nothing to predict", flags.tokens),
        ExitCode::bad_data);
  flags.output.write(as_json ? json(result, flags.per_token) : text(result, flags.per_token));
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("evaluate", "a checkpoint's loss on given tokens");
  command
      ->add_option("checkpoint", flags->checkpoint,
                   "a checkpoint's folder, or the one above it: the latest there")
      ->required();
  command
      ->add_option("--tokens", flags->tokens,
                   "one token number per line, or a Megatron .bin/.idx pair")
      ->type_name("FILE")
      ->required();
  add_int(*command, "--sequence-length", flags->sequence_length, 1, 1 << 24,
          "longer documents are cut (default: the run's training.sequence_length)");
  command->add_flag("--per-token", flags->per_token,
                    "also the loss of every token; none for the first of a document");
  command
      ->add_option("--logits", flags->logits,
                   "write the logits behind every token: a safetensors file")
      ->type_name("FILE");
  flags->device.add(*command);
  flags->output.add(*command, "text (default), json");
  command->callback(
      [flags] { flags->device.run([&](at::Device device) { run(*flags, device); }); });
}

}  // namespace sluice::cli
