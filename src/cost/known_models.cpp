#include "sluice/cost/known_models.h"

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {
namespace {

struct KnownModel {
  std::string_view name;
  ModelShape shape;
};

// Seq1F1B's (arXiv 2406.03488). Sequences may have any length, so there is no table of positions.
constexpr ModelShape gpt(std::int64_t layers, std::int64_t dim, std::int64_t heads,
                         std::int64_t vocab_size) {
  return {.family = ModelFamily::gpt2,
          .layers = layers,
          .dim = dim,
          .heads = heads,
          .kv_heads = heads,
          .ffn_dim = 4 * dim,
          .vocab_size = vocab_size};
}

constexpr ModelShape llama_3(std::int64_t layers, std::int64_t dim, std::int64_t heads,
                             std::int64_t ffn_dim) {
  return {.family = ModelFamily::llama,
          .layers = layers,
          .dim = dim,
          .heads = heads,
          .kv_heads = 8,
          .ffn_dim = ffn_dim,
          .vocab_size = 128256,
          .rope_theta = 500000};
}

constexpr KnownModel kModels[] = {
    {"gpt-2.7b", gpt(32, 2560, 32, 32000)},       {"gpt-7b", gpt(32, 4096, 32, 32768)},
    {"gpt-13b", gpt(40, 5120, 40, 32768)},        {"gpt-30b", gpt(64, 6144, 64, 32768)},
    {"llama-3-8b", llama_3(32, 4096, 32, 14336)}, {"llama-3-70b", llama_3(80, 8192, 64, 28672)},
};

}  // namespace

const ModelShape& known_model(std::string_view name) {
  for (const KnownModel& model : kModels)
    if (model.name == name) return model.shape;
  const std::vector<std::string> names = known_model_names();
  const std::string nearest = nearest_name(name, names);
  throw user_error("`model` is '{}'{}; needs one of {}", name,
                   nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest),
                   join(names, ", "));
}

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const KnownModel& model : kModels)
    names.emplace_back(model.name);
  return names;
}

}  // namespace sluice
