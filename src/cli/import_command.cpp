// sluice import HF_DIR --out FOLDER and sluice export CHECKPOINT --out HF_DIR: weights from and to
// Hugging Face folders.
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/runtime/weights/hf_import.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string from;
  std::string out;
  std::string dtype;
};

void show(const char* done, const Transferred& model) {
  fmt::print("{} {}: {}, {} of width {}, {}, {}, {}{}\n", done, model.folder, model.model.shape,
             counted(model.model.layers, "layer"), model.model.dim,
             counted(model.tensors, "tensor"), counted(model.parameters, "parameter"),
             model.dtype == Dtype::bf16 ? "bfloat16" : "float32",
             model.files.empty() ? "" : ", with " + join(model.files, ", "));
}

std::optional<Dtype> parse_dtype_flag(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "float32") return Dtype::f32;
  if (name == "bfloat16") return Dtype::bf16;
  throw user_error("--dtype is '{}': needs float32 or bfloat16", name);
}

}  // namespace

void add_import(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("import", "convert a Hugging Face folder (GPT-2, Llama) to a checkpoint");
  command->add_option("hf_dir", flags->from, "a folder with config.json and safetensors")
      ->required();
  command
      ->add_option("--out", flags->out,
                   "the run's folder to write; the checkpoint becomes its step 0")
      ->type_name("FOLDER")
      ->required();
  command
      ->add_option("--dtype", flags->dtype,
                   "float32 or bfloat16 (default: as the weights are; float16 becomes float32)")
      ->type_name("NAME");
  command->callback([flags] {
    show("imported to", import_hf(flags->from, flags->out, parse_dtype_flag(flags->dtype)));
  });
}

void add_export(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "export", "convert a checkpoint to a Hugging Face folder, which transformers loads");
  command
      ->add_option("checkpoint", flags->from,
                   "checkpoint folder, or a folder of checkpoints (its latest is used)")
      ->required();
  command->add_option("--out", flags->out, "the folder to write; it must not hold a model")
      ->type_name("HF_DIR")
      ->required();
  command->callback([flags] { show("exported to", export_hf(flags->from, flags->out)); });
}

}  // namespace sluice::cli
