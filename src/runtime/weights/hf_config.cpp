#include "sluice/runtime/weights/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/schedule/strict_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Members of a JSON object; null counts as absent.
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
  // A size that has no default: a guess that fits the weights could still be another model.
  int size(const char* key, const char* alias = nullptr) const {
    const bool own = find(key) != nullptr, other = alias && find(alias);
    if (!own && !other)
      wrong(key, alias ? fmt::format("needs a whole number (the name {} is read, too)", alias)
                       : std::string("needs a whole number"));
    if (own && other && whole(key, 0) != whole(alias, 0))
      wrong(key, fmt::format("{} is {}, and both name the same size; make them agree", alias,
                             whole(alias, 0)));
    return whole(own ? key : alias, 0);
  }
  double real(const char* key, double otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number()) wrong(key, "needs a number");
    return value->get<double>();
  }
  double needed_real(const char* key) const {
    if (!find(key)) wrong(key, "needs a number");
    return real(key, 0);
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

constexpr const char* kKnown =
    "only GPT2LMHeadModel (gpt2) and LlamaForCausalLM (llama) are supported";

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
  model.shape = ModelFamily::gpt2;
  model.vocab_size = config.size("vocab_size");
  model.positions = config.size("n_positions", "max_position_embeddings");
  model.dim = config.size("n_embd", "hidden_size");
  model.layers = config.size("n_layer", "num_hidden_layers");
  model.heads = model.kv_heads = config.size("n_head", "num_attention_heads");
  config.require(model.dim <= std::numeric_limits<int>::max() / 4, "n_embd", "too large");
  model.ffn_dim = config.whole("n_inner", 4 * model.dim);
  model.norm_epsilon = config.real("layer_norm_epsilon", 1e-5);
  model.tied_embeddings = config.truth("tie_word_embeddings", true);
  const std::string activation = config.text("activation_function", "gelu_new");
  config.require(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                 "activation_function",
                 "only gelu_new is supported, and gelu_pytorch_tanh, which is the same");
  config.require(config.truth("scale_attn_weights", true), "scale_attn_weights",
                 "only scaled attention is supported");
  config.require(!config.truth("scale_attn_by_inverse_layer_idx", false),
                 "scale_attn_by_inverse_layer_idx",
                 "only the same scale in all layers is supported");
  config.require(!config.truth("add_cross_attention", false), "add_cross_attention",
                 "cross attention is not supported");
  return model;
}

// rope_scaling (transformers 4) and rope_parameters (5) have the same members.
void read_rope(const Members& rope, const Members& config, ModelConfig& model) {
  rope.require(rope.real("partial_rotary_factor", 1) == 1, "partial_rotary_factor",
               "only rotation of whole heads is supported");
  if (rope.find("rope_theta")) {
    model.rope_theta = rope.real("rope_theta", 0);
    if (config.find("rope_theta") && model.rope_theta != config.real("rope_theta", 0))
      rope.wrong("rope_theta", fmt::format("rope_theta is {}; make them agree",
                                           number(config.real("rope_theta", 0))));
  }
  const char* key = rope.find("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  if (rope.text("type", type.c_str()) != type)
    rope.wrong("type", fmt::format("rope_type is \"{}\"; make them agree", type));
  if (type == "default") return;
  rope.require(type == "llama3", key, "only the types \"default\" and \"llama3\" are supported");
  model.rope_scaling = RopeScalingKind::llama3;
  model.rope_factor = rope.needed_real("factor");
  model.rope_low_freq_factor = rope.needed_real("low_freq_factor");
  model.rope_high_freq_factor = rope.needed_real("high_freq_factor");
  model.rope_original_positions = rope.size("original_max_position_embeddings");
}

void read_rotary_positions(const Members& config, const std::string& path, ModelConfig& model) {
  constexpr double kUsualTheta = 10000;
  model.rope_theta = config.real("rope_theta", kUsualTheta);
  const Json* scaling = config.find("rope_scaling");
  const Json* parameters = config.find("rope_parameters");
  ModelConfig other = model;
  if (parameters) read_rope(Members(*parameters, path, "rope_parameters."), config, model);
  if (!scaling) return;
  read_rope(Members(*scaling, path, "rope_scaling."), config, other);
  if (parameters && !(other == model))
    config.wrong("rope_scaling", "rope_parameters says something else; make them agree");
  model = other;
}

ModelConfig read_llama(const Members& config, const std::string& path) {
  ModelConfig model;
  model.shape = ModelFamily::llama;
  model.vocab_size = config.size("vocab_size");
  model.positions = config.size("max_position_embeddings");
  model.dim = config.size("hidden_size");
  model.layers = config.size("num_hidden_layers");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.whole("num_key_value_heads", model.heads);
  model.ffn_dim = config.size("intermediate_size");
  model.norm_epsilon = config.real("rms_norm_eps", 1e-6);
  model.tied_embeddings = config.truth("tie_word_embeddings", false);
  read_rotary_positions(config, path, model);
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
    throw UserError(fmt::format("{}: Sluice has no such model: {}", path, problems.front()),
                    ExitCode::bad_data);
}

Json parse(std::string_view json, const std::string& path) {
  try {
    return parse_strict_json(json);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", path, error.what()), ExitCode::bad_data);
  }
}

bool is_token_id(const Json& value) {
  return value.is_number_unsigned() || value.is_null() ||
         (value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& token) {
            return token.is_number_unsigned();
          }));
}

}  // namespace

ModelConfig read_hf_config(std::string_view json, const std::string& path) {
  const Json parsed = parse(json, path);
  const Members config(parsed, path);
  const std::string family = family_of(config);
  refuse_elsewhere_supported(config);
  const ModelConfig model = family == "gpt2" ? read_gpt2(config) : read_llama(config, path);
  config.require(std::isfinite(model.norm_epsilon) && model.norm_epsilon > 0,
                 family == "gpt2" ? "layer_norm_epsilon" : "rms_norm_eps", "needs to be above 0");
  check_ranges(model, path);
  return model;
}

std::string read_hf_token_ids(std::string_view json, const std::string& path) {
  const Json parsed = parse(json, path);
  const Members config(parsed, path);
  Json ids = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto found = parsed.find(key);
    if (found == parsed.end()) continue;
    config.require(is_token_id(*found), key, "needs a token number, or a list of them");
    ids[key] = *found;
  }
  return ids.dump(2) + "\n";
}

std::string write_hf_config(const ModelConfig& model, const HfConfigOptions& options) {
  const bool gpt2 = model.shape == ModelFamily::gpt2;
  SLUICE_CHECK(gpt2 || model.shape == ModelFamily::llama, "no config.json is known for {}",
               model.shape);
  const char* dtype = options.dtype == Dtype::bf16 ? "bfloat16" : "float32";
  Json config;
  config["architectures"] = {gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  config["model_type"] = name_of(model.shape);
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
    Json scaling;
    if (model.rope_scaling == RopeScalingKind::llama3)
      scaling = {{"rope_type", "llama3"},
                 {"factor", model.rope_factor},
                 {"low_freq_factor", model.rope_low_freq_factor},
                 {"high_freq_factor", model.rope_high_freq_factor},
                 {"original_max_position_embeddings", model.rope_original_positions}};
    config["rope_theta"] = model.rope_theta;
    config["rope_scaling"] = scaling;
    if (scaling.is_null()) scaling = {{"rope_type", "default"}};
    scaling["rope_theta"] = model.rope_theta;
    config["rope_parameters"] = scaling;
  }
  if (!options.token_ids.empty()) {
    config.update(parse(options.token_ids, "token ids"));
  } else {
    // Written even where it is not known: the default of transformers may lie beyond the
    // vocabulary.
    const Json end = options.end_of_text ? Json(*options.end_of_text) : Json(nullptr);
    config["bos_token_id"] = gpt2 ? end : Json(nullptr);
    config["eos_token_id"] = end;
  }
  config["dtype"] = dtype;
  config["torch_dtype"] = dtype;
  return config.dump(2) + "\n";
}

}  // namespace sluice
