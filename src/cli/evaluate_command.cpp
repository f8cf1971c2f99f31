// sluice evaluate CHECKPOINT --tokens FILE: the model's loss on these tokens, comparable with the
// loss that other programs compute.
#include <cmath>
#include <filesystem>

#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/device_flag.h"
#include "sluice/cli/output.h"
#include "sluice/data/token_lines.h"
#include "sluice/runtime/evaluation.h"
#include "sluice/runtime/files/safetensors.h"

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

// Nine digits tell every float from its neighbours. A loss that is not finite is nan or inf.
std::string loss_text(double loss) {
  return std::isnan(loss) ? "nan" : fmt::format("{:.9g}", loss);  // without its sign
}

// JSON has no number for nan and inf.
std::string json_loss(double loss) {
  return std::isfinite(loss) ? loss_text(loss) : '"' + loss_text(loss) + '"';
}

std::string json(const Evaluation& result, bool per_token) {
  std::string list;
  if (per_token) {
    std::vector<std::string> losses;
    for (const std::optional<double>& loss : result.per_token)
      losses.push_back(loss ? json_loss(*loss) : "null");
    list = fmt::format(",\n  \"per_token\": [{}]", join(losses, ", "));
  }
  return fmt::format(
      "{{\n  \"loss\": {},\n  \"tokens\": {},\n  \"non_finite\": {},\n  \"sequence_length\": "
      "{}{}\n}}\n",
      json_loss(result.loss), result.tokens, result.non_finite, result.sequence_length, list);
}

std::string text(const Evaluation& result, bool per_token) {
  std::string out =
      fmt::format("loss {} nats per token over {}, in sequences of at most {}\n",
                  loss_text(result.loss), counted(result.tokens, "token"), result.sequence_length);
  if (per_token)
    for (const std::optional<double>& loss : result.per_token)
      out += (loss ? loss_text(*loss) : "-") + "\n";
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
        fmt::format("{}: every document has a single token, so there is nothing to predict",
                    flags.tokens),
        ExitCode::bad_data);
  flags.output.write(as_json ? json(result, flags.per_token) : text(result, flags.per_token));
  if (result.non_finite > 0)
    throw UserError(
        fmt::format("{} of {} tokens have a loss that is not finite (nan or inf): the model has "
                    "diverged, or its activations overflow; evaluate an earlier checkpoint",
                    result.non_finite, result.tokens),
        ExitCode::diverged);
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("evaluate", "compute a checkpoint's loss on a file of tokens");
  command
      ->add_option("checkpoint", flags->checkpoint,
                   "checkpoint folder, or a folder of checkpoints (its latest is used)")
      ->required();
  command
      ->add_option("--tokens", flags->tokens,
                   "one token number per line, or a Megatron .bin/.idx pair")
      ->type_name("FILE")
      ->required();
  add_int(*command, "--sequence-length", flags->sequence_length, 1, 1 << 24,
          "cut longer documents into parts of this length (default: as trained)");
  command->add_flag("--per-token", flags->per_token,
                    "also print the loss of each token; the first of a document has none");
  command
      ->add_option("--logits", flags->logits,
                   "write the logits that follow each token to a safetensors file")
      ->type_name("FILE");
  flags->device.add(*command);
  flags->output.add(*command, "text (default), json");
  command->callback(
      [flags] { flags->device.run([&](at::Device device) { run(*flags, device); }); });
}

}  // namespace sluice::cli
