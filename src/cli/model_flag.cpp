#include "sluice/cli/model_flag.h"

#include <algorithm>
#include <filesystem>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/base/text.h"
#include "sluice/cli/run_config.h"
#include "sluice/config/model.h"
#include "sluice/config/resolve.h"
#include "sluice/cost/known_models.h"
#include "sluice/runtime/weights/hf_config.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

// Only what concerns the model: how the run divides it does not matter here.
Config run_model(const std::string& path) {
  const LoadedConfig loaded = load_run_config(path, {});
  if (std::none_of(loaded.origins.begin(), loaded.origins.end(),
                   [](const auto& origin) { return origin.first.starts_with("model."); }))
    throw user_error("--model is '{}': it sets no key of [model], so it describes no model", path);
  const Config& run = loaded.values;
  Config config;
  config.model = run.model;
  config.training.sequence_length = run.training.sequence_length;
  if (const std::vector<std::string> problems = validate_config(config); !problems.empty())
    throw user_error("{}: {}", path, problems.front());
  return resolve_config(config);
}

NamedModel of_run(const std::string& path) {
  const Config config = run_model(path);
  return {path, model_shape(config), config.training.sequence_length};
}

// It says how long sequences may be, not how long they are; those of a learned table have an end.
NamedModel of_hugging_face(const std::string& path) {
  Config config;
  config.model = read_hf_config(read_text(path, kMaxBytes), path);
  NamedModel model{path, model_shape(config)};
  if (model.shape.positions > 0) model.tokens = std::min(model.tokens, config.model.positions);
  return model;
}

}  // namespace

NamedModel named_model(const std::string& name) {
  if (const ModelShape* known = known_model(name)) return {name, *known};
  std::error_code ignored;
  if (std::filesystem::exists(name, ignored))
    return name.ends_with(".json") ? of_hugging_face(name) : of_run(name);
  const std::vector<std::string> names = known_model_names();
  const std::string nearest = nearest_name(name, names);
  throw user_error(
      "--model is '{}'{}; needs one of {}, or {}", name,
      nearest.empty() ? ": no such file" : fmt::format(": did you mean '{}'?", nearest),
      join(names, ", "), kModelFiles);
}

}  // namespace sluice::cli
