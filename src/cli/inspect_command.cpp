// sluice inspect CHECKPOINT: shows the tensors that a checkpoint holds. The mesh and the schedule
// that it was saved under do not change them.
#include <fmt/ranges.h>

#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "sluice/runtime/files/digest.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string checkpoint;
  OutputFlags output;
};

std::string tensors_json(const std::vector<TensorDigest>& list) {
  std::vector<std::string> lines;
  for (const auto& [tensor, sha256] : list)
    lines.push_back(fmt::format(
        R"(    {{"name": {}, "shape": [{}], "dtype": "{}", "sha256": "{}"}})",
        json_quote(tensor.name), fmt::join(tensor.shape, ", "), dtype_name(tensor.dtype), sha256));
  return lines.empty() ? "[]" : fmt::format("[\n{}\n  ]", join(lines, ",\n"));
}

std::string json(const CheckpointInfo& info, const CheckpointDigest& held) {
  const CheckpointMesh& mesh = info.mesh;
  return fmt::format(
      "{{\n  \"step\": {},\n"
      "  \"mesh\": {{\"data\": {}, \"pipeline\": {}, \"tensor\": {}, \"sequence\": {}, "
      "\"order\": {}}},\n"
      "  \"schedule\": {},\n  \"config\": {},\n  \"tensors\": {},\n  \"states\": {},\n"
      "  \"older_weights\": {},\n"
      "  \"weights_sha256\": \"{}\"\n}}\n",
      info.step, mesh.data, mesh.pipeline, mesh.tensor, mesh.sequence, json_quote(mesh.order),
      json_quote(info.schedule), json_quote(info.config), tensors_json(held.weights),
      tensors_json(held.states), tensors_json(held.older), held.weights_sha256);
}

double mebibytes(const std::vector<TensorDigest>& list) {
  double bytes = 0;
  for (const TensorDigest& held : list)
    bytes += static_cast<double>(tensor_bytes(held.tensor.dtype, held.tensor.shape).value());
  return bytes / (1 << 20);
}

std::string text(const CheckpointInfo& info, const CheckpointDigest& held) {
  const CheckpointMesh& mesh = info.mesh;
  TextTable table({"weight", "shape", "dtype", "sha256"});
  table.left_align(1);
  table.left_align(2);
  table.left_align(3);
  for (const auto& [tensor, sha256] : held.weights)
    table.add({tensor.name, fmt::format("{}", fmt::join(tensor.shape, " x ")),
               std::string(dtype_name(tensor.dtype)), sha256.substr(0, 16)});
  const std::string older =
      held.older.empty()
          ? ""
          : fmt::format("; {} older weights, {:.2f} MiB", held.older.size(), mebibytes(held.older));
  return fmt::format(
      "step {} of {}; mesh data {} x pipeline {} x tensor {} x sequence {}\n"
      "{} weights, {:.2f} MiB; {} optimizer states, {:.2f} MiB{}\n"
      "weights_sha256 {}\n{}",
      info.step, info.schedule, mesh.data, mesh.pipeline, mesh.tensor, mesh.sequence,
      held.weights.size(), mebibytes(held.weights), held.states.size(), mebibytes(held.states),
      older, held.weights_sha256, table.text());
}

void run(const Flags& flags) {
  const bool as_json = flags.output.format("text,json") == Format::json;
  const Checkpoint checkpoint(checkpoint_at(flags.checkpoint));
  const CheckpointInfo& info = checkpoint.manifest().info;
  const CheckpointDigest held = digest(checkpoint);
  flags.output.write(as_json ? json(info, held) : text(info, held));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("inspect", "verify a checkpoint and show what it holds");
  command
      ->add_option("checkpoint", flags->checkpoint,
                   "checkpoint folder, or a folder of checkpoints (its latest is used)")
      ->required();
  flags->output.add(*command, "text (default), json");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
