#include "sluice/runtime/weights/hf_tensors.h"

#include <algorithm>
#include <array>
#include <map>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {
namespace {

using Names = std::map<std::string_view, std::string_view>;

// Of modules; what follows is .weight or .bias. Those of a layer come after its number.
const Names& end_names(ModelFamily family) {
  static const Names gpt2 = {{"embedding", "transformer.wte"},
                             {"positions", "transformer.wpe"},
                             {"norm", "transformer.ln_f"},
                             {"head", "lm_head"}};
  static const Names llama = {
      {"embedding", "model.embed_tokens"}, {"norm", "model.norm"}, {"head", "lm_head"}};
  return family == ModelFamily::gpt2 ? gpt2 : llama;
}

const Names& layer_names(ModelFamily family) {
  static const Names gpt2 = {{"attention_norm", "ln_1"},       {"attention.q", "attn.c_attn"},
                             {"attention.k", "attn.c_attn"},   {"attention.v", "attn.c_attn"},
                             {"attention.out", "attn.c_proj"}, {"mlp_norm", "ln_2"},
                             {"mlp.up", "mlp.c_fc"},           {"mlp.down", "mlp.c_proj"}};
  static const Names llama = {
      {"attention_norm", "input_layernorm"}, {"attention.q", "self_attn.q_proj"},
      {"attention.k", "self_attn.k_proj"},   {"attention.v", "self_attn.v_proj"},
      {"attention.out", "self_attn.o_proj"}, {"mlp_norm", "post_attention_layernorm"},
      {"mlp.gate", "mlp.gate_proj"},         {"mlp.up", "mlp.up_proj"},
      {"mlp.down", "mlp.down_proj"}};
  return family == ModelFamily::gpt2 ? gpt2 : llama;
}

// Of GPT-2's one matmul for all three.
constexpr std::array<std::string_view, 3> kThirds = {"attention.q", "attention.k", "attention.v"};

std::string_view found_in(const Names& names, std::string_view module) {
  const auto found = names.find(module);
  SLUICE_CHECK(found != names.end(), "the weights of {} have no name in a Hugging Face folder",
               module);
  return found->second;
}

}  // namespace

std::vector<std::int64_t> HfWeight::stored_shape() const {
  std::vector<std::int64_t> shape = ours.shape;
  shape[0] = num_outputs;
  if (transposed) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<HfWeight> hf_weights(const ModelShape& shape) {
  SLUICE_CHECK(!shape.encoder(), "an encoder cannot be exported");
  const bool gpt2 = shape.family == ModelFamily::gpt2;
  std::vector<HfWeight> weights;
  for (ParameterShape& ours : stage_parameters(
           shape, {.first = 0, .end = shape.layers, .embedding = true, .head = true})) {
    if (shape.tied_embeddings && ours.name == "head.weight") continue;
    const std::string_view full = ours.name;
    const std::string_view kind = full.substr(full.rfind('.'));  // .weight, .bias
    std::string_view module = full.substr(0, full.size() - kind.size());
    HfWeight weight;
    weight.outputs = {0, ours.shape[0]};
    weight.num_outputs = ours.shape[0];
    if (module.starts_with("layers.")) {
      module.remove_prefix(std::string_view("layers.").size());
      const std::string_view number = module.substr(0, module.find('.'));
      module.remove_prefix(number.size() + 1);
      weight.name = fmt::format("{}.{}.{}{}", gpt2 ? "transformer.h" : "model.layers", number,
                                found_in(layer_names(shape.family), module), kind);
      weight.transposed = gpt2 && ours.shape.size() == 2;
    } else {
      weight.name = fmt::format("{}{}", found_in(end_names(shape.family), module), kind);
    }
    const auto third = std::find(kThirds.begin(), kThirds.end(), module);
    if (gpt2 && third != kThirds.end()) {
      const std::int64_t begin = (third - kThirds.begin()) * shape.dim;
      weight.outputs = {begin, begin + shape.dim};
      weight.num_outputs = 3 * shape.dim;
    }
    weight.ours = std::move(ours);
    weights.push_back(std::move(weight));
  }
  return weights;
}

bool is_hf_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace sluice
