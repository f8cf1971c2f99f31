#include "runtime/weights/hf_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "schedule/strict_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Members of a JSON object; null is as good as absent.
class Members {
 public:
  Members(const Json& object, const std::string& path, std::string prefix = "")
      : object_(object), path_(path), prefix_(std::move(prefix)) {
    if (!object.is_object()) fail(fmt::format("{}needs to be an object", prefix_));
  }

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  int whole(const char* key, int otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<int>::max());
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() > kMost)
      wrong(key, "needs a whole number");
    return value->get<int>();
  }
  double real(const char* key, double otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number()) wrong(key, "needs a number");
    return value->get<double>();
  }
  bool truth(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) wrong(key, "needs true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) wrong(key, "needs a string");
    return value->get<std::string>();
  }
  void require(bool holds, const char* key, const char* why) const {
    if (!holds) wrong(key, why);
  }
  [[noreturn]] void wrong(const char* key, const std::string& why) const {
    const Json* value = find(key);
    std::string have =
        value ? value->dump(-1, ' ', true, Json::error_handler_t::replace) : std::string("missing");
    if (have.size() > 80) have = have.substr(0, 80) + "...";
    fail(fmt::format("{}{} is {}: {}", prefix_, key, have, why));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(fmt::format("{}: {}", path_, what), ExitCode::bad_data);
  }

 private:
  const Json& object_;
  const std::string& path_;
  std::string prefix_;
};

constexpr const char* kKnown = "known are GPT2LMHeadModel (gpt2) and LlamaForCausalLM (llama)";

// "gpt2" or "llama".
std::string family_of(const Members& config) {
  const std::string type = config.text("model_type", "");
  const Json* architectures = config.find("architectures");
  if (architectures) {
    if (!architectures->is_array() || architectures->size() != 1 ||
        !architectures->front().is_string())
      config.wrong("architectures", std::string("needs one name; ") + kKnown);
    const auto name = architectures->front().get<std::string>();
    const std::string family = name == "GPT2LMHeadModel"    ? "gpt2"
                               : name == "LlamaForCausalLM" ? "llama"
                                                            : "";
    if (family.empty()) config.wrong("architectures", kKnown);
    if (!type.empty() && type != family)
      config.wrong("model_type", fmt::format("architectures is {}; make them agree", name));
    return family;
  }
  if (type != "gpt2" && type != "llama") config.wrong("model_type", kKnown);
  return type;
}

void refuse_elsewhere_supported(const Members& config) {
  config.require(!config.find("quantization_config"), "quantization_config",
                 "quantized weights are not supported; export them unquantized");
  const Json* pruned = config.find("pruned_heads");
  config.require(!pruned || pruned->empty(), "pruned_heads", "pruned heads are not supported");
  config.require(!config.truth("is_encoder_decoder", false), "is_encoder_decoder",
                 "only decoders are supported");
}

ModelConfig read_gpt2(const Members& config) {
  ModelConfig model;
  model.shape = "gpt2";
  model.vocab_size = config.whole("vocab_size", 50257);
  model.positions = config.whole("n_positions", 1024);
  model.dim = config.whole("n_embd", 768);
  model.layers = config.whole("n_layer", 12);
  model.heads = model.kv_heads = config.whole("n_head", 12);
  config.require(model.dim <= std::numeric_limits<int>::max() / 4, "n_embd", "too large");
  model.ffn_dim = config.whole("n_inner", 4 * model.dim);
  model.norm_epsilon = config.real("layer_norm_epsilon", 1e-5);
  model.tied_embeddings = config.truth("tie_word_embeddings", true);
  const std::string activation = config.text("activation_function", "gelu_new");
  config.require(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                 "activation_function", "only gelu_new, and gelu_pytorch_tanh, which is the same");
  config.require(config.truth("scale_attn_weights", true), "scale_attn_weights",
                 "only scaled attention is supported");
  config.require(!config.truth("scale_attn_by_inverse_layer_idx", false),
                 "scale_attn_by_inverse_layer_idx", "only one scale for all layers is supported");
  config.require(!config.truth("add_cross_attention", false), "add_cross_attention",
                 "cross attention is not supported");
  return model;
}

// What rope_scaling (4) or rope_parameters (5) says must be plain rotary positions.
void require_plain_rope(const Members& rope) {
  for (const char* key : {"rope_type", "type"})
    rope.require(rope.text(key, "default") == "default", key,
                 "only rotary positions of type \"default\" are supported");
  rope.require(rope.real("partial_rotary_factor", 1) == 1, "partial_rotary_factor",
               "only rotation of whole heads is supported");
}

double rope_theta(const Members& config, const std::string& path) {
  constexpr double kUsual = 10000;
  if (const Json* scaling = config.find("rope_scaling"))
    require_plain_rope(Members(*scaling, path, "rope_scaling."));
  const double old_theta = config.real("rope_theta", kUsual);
  const Json* parameters = config.find("rope_parameters");
  if (!parameters) return old_theta;
  const Members rope(*parameters, path, "rope_parameters.");
  require_plain_rope(rope);
  const double theta = rope.real("rope_theta", old_theta);
  if (config.find("rope_theta") && theta != old_theta)
    rope.wrong("rope_theta", fmt::format("rope_theta is {}; make them agree", old_theta));
  return theta;
}

ModelConfig read_llama(const Members& config, const std::string& path) {
  ModelConfig model;
  model.shape = "llama";
  model.vocab_size = config.whole("vocab_size", 32000);
  model.positions = config.whole("max_position_embeddings", 2048);
  model.dim = config.whole("hidden_size", 4096);
  model.layers = config.whole("num_hidden_layers", 32);
  model.heads = config.whole("num_attention_heads", 32);
  model.kv_heads = config.whole("num_key_value_heads", model.heads);
  model.ffn_dim = config.whole("intermediate_size", 11008);
  model.norm_epsilon = config.real("rms_norm_eps", 1e-6);
  model.tied_embeddings = config.truth("tie_word_embeddings", false);
  model.rope_theta = rope_theta(config, path);
  config.require(config.text("hidden_act", "silu") == "silu", "hidden_act",
                 "only silu is supported");
  for (const char* key : {"attention_bias", "mlp_bias"})
    config.require(!config.truth(key, false), key, "biases are not supported in a llama");
  config.require(model.heads > 0, "num_attention_heads", "needs at least 1");
  config.require(
      std::int64_t{config.whole("head_dim", model.dim / model.heads)} * model.heads == model.dim,
      "head_dim", "only hidden_size / num_attention_heads is supported");
  return model;
}

// Every value in the range of its key, and all of them fitting together.
void check_ranges(const ModelConfig& model, const std::string& path) {
  Config config;
  config.model = model;
  config.training.sequence_length = 1;
  const std::vector<std::string> problems = [&] {
    try {
      return validate_config(load_config_text(config_text(config), path, {}).values);
    } catch (const UserError& error) {
      return std::vector<std::string>{error.what()};
    }
  }();
  if (!problems.empty())
    throw UserError(fmt::format("{}: as a model of ours: {}", path, problems.front()),
                    ExitCode::bad_data);
}

}  // namespace

ModelConfig read_hf_config(std::string_view json, const std::string& path) {
  const Json parsed = [&] {
    try {
      return parse_strict_json(json);
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: {}", path, error.what()), ExitCode::bad_data);
    }
  }();
  const Members config(parsed, path);
  const std::string family = family_of(config);
  refuse_elsewhere_supported(config);
  const ModelConfig model = family == "gpt2" ? read_gpt2(config) : read_llama(config, path);
  config.require(std::isfinite(model.norm_epsilon) && model.norm_epsilon > 0,
                 family == "gpt2" ? "layer_norm_epsilon" : "rms_norm_eps", "needs to be above 0");
  check_ranges(model, path);
  return model;
}

std::string write_hf_config(const ModelConfig& model, const HfConfigOptions& options) {
  const bool gpt2 = model.shape == "gpt2";
  SLUICE_CHECK(gpt2 || model.shape == "llama", "a {} has no form here", model.shape);
  const char* dtype = options.dtype == Dtype::bf16 ? "bfloat16" : "float32";
  Json config;
  config["architectures"] = {gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  config["model_type"] = model.shape;
  config["vocab_size"] = model.vocab_size;
  config["tie_word_embeddings"] = model.tied_embeddings;
  if (gpt2) {
    config["n_positions"] = model.positions;
    config["n_embd"] = model.dim;
    config["n_layer"] = model.layers;
    config["n_head"] = model.heads;
    config["n_inner"] = model.ffn_dim;
    config["activation_function"] = "gelu_new";
    config["layer_norm_epsilon"] = model.norm_epsilon;
    for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"})
      config[dropout] = 0.0;
  } else {
    config["max_position_embeddings"] = model.positions;
    config["hidden_size"] = model.dim;
    config["num_hidden_layers"] = model.layers;
    config["num_attention_heads"] = model.heads;
    config["num_key_value_heads"] = model.kv_heads;
    config["head_dim"] = model.dim / model.heads;
    config["intermediate_size"] = model.ffn_dim;
    config["hidden_act"] = "silu";
    config["rms_norm_eps"] = model.norm_epsilon;
    config["attention_bias"] = false;
    config["mlp_bias"] = false;
    config["rope_theta"] = model.rope_theta;
    config["rope_scaling"] = nullptr;
    config["rope_parameters"] = {{"rope_theta", model.rope_theta}, {"rope_type", "default"}};
  }
  // Written even where it is not known: what transformers takes for absent may lie beyond the
  // vocabulary.
  const Json end = options.end_of_text ? Json(*options.end_of_text) : Json(nullptr);
  config["bos_token_id"] = gpt2 ? end : Json(nullptr);
  config["eos_token_id"] = end;
  config["dtype"] = dtype;
  config["torch_dtype"] = dtype;
  return config.dump(2) + "\n";
}

}  // namespace sluice
