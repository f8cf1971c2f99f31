// Weights of Hugging Face folders: in, out, in again, and everything that is refused.
#include <gtest/gtest.h>

#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/digest.h"
#include "sluice/runtime/weights/hf_config.h"
#include "sluice/runtime/weights/hf_import.h"
#include "sluice/runtime/weights/saved_model.h"
#include "support/golden.h"
#include "support/hf_model.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::HfTensors;
using test::kTinyGpt2;
using test::kTinyLlama;
using Bytes = std::vector<std::byte>;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

Bytes tensor_of(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  Bytes bytes(tensor->bytes);
  file.read(*tensor, bytes);
  return bytes;
}

Bytes weight_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorSpec* tensor = checkpoint.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  Bytes bytes(tensor_bytes(tensor->dtype, tensor->shape).value());
  checkpoint.read_box(*tensor, whole_box(*tensor), bytes);
  return bytes;
}

class Hf : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  std::string refusal(const std::function<void()>& act, ExitCode code = ExitCode::bad_data) {
    try {
      act();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "accepted";
  }
  std::string import_refusal(const std::string& hf) {
    return refusal([&] { import_hf(path(hf), path(hf + "-out"), {}); });
  }

  // In, out and in again: every tensor, and the folder in between, is what it was.
  void expect_identity(const std::string& name, Dtype dtype, const HfTensors& expected) {
    SCOPED_TRACE(name);
    const Transferred first = import_hf(path(name), path(name + "-in"), {});
    EXPECT_EQ(first.dtype, dtype == Dtype::f16 ? Dtype::f32 : dtype);
    const Transferred out = export_hf(path(name + "-in"), path(name + "-out"));
    EXPECT_EQ(out.parameters, first.parameters);
    const SafetensorsFile file(path(name + "-out") + "/model.safetensors");
    EXPECT_EQ(file.tensors().size(), expected.size());
    for (const auto& [tensor, shape] : expected) {
      const Bytes had = test::hf_values(tensor, shape, dtype);
      EXPECT_EQ(tensor_of(file, tensor), convert(had, dtype, first.dtype)) << tensor;
    }
    const Transferred again = import_hf(path(name + "-out"), path(name + "-again"), {});
    const Checkpoint a(first.folder), b(again.folder);
    const CheckpointDigest before = digest(a), after = digest(b);
    EXPECT_EQ(before.weights_sha256, after.weights_sha256);
    EXPECT_EQ(before.weights.size(), after.weights.size());
    EXPECT_TRUE(before.states.empty());
    EXPECT_EQ(config_of(a), config_of(b));
    EXPECT_EQ(config_of(a).model, first.model);
  }

  test::TemporaryFolder folder_;
};

TEST_F(Hf, InOutAndInAgainIsTheIdentity) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const std::string end = std::string(dtype_name(dtype));
    test::write_hf_folder(path("gpt2" + end), kTinyGpt2, test::gpt2_tensors(), dtype);
    expect_identity("gpt2" + end, dtype, test::gpt2_tensors());
    test::write_hf_folder(path("llama" + end), kTinyLlama, test::llama_tensors(), dtype, true);
    expect_identity("llama" + end, dtype, test::llama_tensors());
  }
  HfTensors tied = test::llama_tensors();
  tied.erase("lm_head.weight");
  test::write_hf_folder(
      path("tied"),
      replaced(kTinyLlama, R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true)"),
      tied);
  expect_identity("tied", Dtype::f32, tied);
  HfTensors untied = test::gpt2_tensors();
  untied["lm_head.weight"] = {19, 8};
  test::write_hf_folder(
      path("untied"),
      replaced(kTinyGpt2, R"("tie_word_embeddings": true)", R"("tie_word_embeddings": false)"),
      untied);
  expect_identity("untied", Dtype::f32, untied);
}

TEST_F(Hf, Gpt2sProductsAreTurnedAndCutInThree) {
  test::write_hf_folder(path("gpt2"), kTinyGpt2, test::gpt2_tensors());
  const Checkpoint checkpoint(import_hf(path("gpt2"), path("out"), {}).folder);
  const std::string name = "transformer.h.1.attn.c_attn.weight";
  const Bytes stored = test::hf_values(name, {8, 24}, Dtype::f32);
  for (int third = 0; third < 3; ++third) {
    const Bytes ours =
        weight_of(checkpoint, fmt::format("layers.1.attention.{}.weight", "qkv"[third]));
    ASSERT_EQ(ours.size(), 8U * 8 * 4);
    for (std::size_t out = 0; out < 8; ++out)
      for (std::size_t in = 0; in < 8; ++in)
        for (std::size_t byte = 0; byte < 4; ++byte)
          ASSERT_EQ(ours[(out * 8 + in) * 4 + byte],
                    stored[(in * 24 + static_cast<std::size_t>(third) * 8 + out) * 4 + byte]);
  }
}

TEST_F(Hf, NamesWithoutPrefixAndOldBuffersAreTaken) {
  HfTensors tensors = test::gpt2_tensors("");
  tensors["h.0.attn.bias"] = {1, 1, 24, 24};
  tensors["h.0.attn.masked_bias"] = {};
  test::write_hf_folder(path("bare"), kTinyGpt2, tensors);
  EXPECT_EQ(import_hf(path("bare"), path("out"), {}).tensors, 2 + 2 * 16 + 2);
  HfTensors llama = test::llama_tensors();
  llama["model.layers.0.self_attn.rotary_emb.inv_freq"] = {2};
  test::write_hf_folder(path("llama"), kTinyLlama, llama);
  const Transferred done = import_hf(path("llama"), path("llama-out"), Dtype::bf16);
  EXPECT_EQ(done.tensors, 1 + 2 * 9 + 2);
  EXPECT_EQ(done.dtype, Dtype::bf16);
  const Config config = config_of(Checkpoint(done.folder));
  EXPECT_EQ(config.training.dtype, NumberType::bfloat16);
  EXPECT_EQ(config.model.rope_theta, 500000);
  EXPECT_EQ(config.model.norm_epsilon, 1e-6);
  EXPECT_EQ(config.model.kv_heads, 2);
}

TEST_F(Hf, RotaryPositionsAreReadInBothForms) {
  const std::string old_form = R"("rope_theta": 500000.0, "rope_scaling": null)";
  const auto theta = [&](const std::string& form) {
    return read_hf_config(replaced(kTinyLlama, old_form, form), "config.json").rope_theta;
  };
  EXPECT_EQ(theta(old_form), 500000);
  EXPECT_EQ(theta(R"("rope_scaling": {"type": "default"})"), 10000);
  EXPECT_EQ(theta(R"("rope_parameters": {"rope_theta": 7000.5, "rope_type": "default"})"), 7000.5);
  EXPECT_EQ(theta(R"("rope_theta": 5, "rope_parameters": {"rope_theta": 5})"), 5);
  const std::pair<const char*, const char*> refused[] = {
      {R"("rope_theta": 5, "rope_parameters": {"rope_theta": 6})", "make them agree"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8})", "low_freq_factor is missing"},
      {R"("rope_scaling": {"rope_type": "llama3", "type": "default"})", "make them agree"},
      {R"("rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 5})",
       "rope_parameters says something else"},
      {R"("rope_scaling": {"type": "linear", "factor": 8})", R"(rope_scaling.type is "linear")"},
      {R"("rope_parameters": {"rope_type": "yarn"})", R"(rope_parameters.rope_type is "yarn")"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
      {R"("rope_theta": "big")", R"(rope_theta is "big")"},
      {R"("rope_theta": 0)", "rope_theta"},
  };
  for (const auto& [form, word] : refused) {
    const std::string why = refusal([&, text = form] { theta(text); });
    EXPECT_NE(why.find(word), std::string::npos) << why;
    EXPECT_TRUE(why.starts_with("config.json: ")) << why;
  }
}

constexpr const char* kLlama3 =
    R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.5, "high_freq_factor": 5,
        "original_max_position_embeddings": 4096})";

TEST_F(Hf, TheScalingOfLlama3IsReadInBothFormsAndWritten) {
  const std::string old_form = R"("rope_scaling": null)";
  const std::string scaling = fmt::format(R"("rope_scaling": {})", kLlama3);
  const std::string parameters = fmt::format(R"("rope_parameters": {})", kLlama3);
  const ModelConfig model = read_hf_config(replaced(kTinyLlama, old_form, scaling), "config.json");
  EXPECT_EQ(model.rope_scaling, RopeScalingKind::llama3);
  EXPECT_EQ(model.rope_factor, 32);
  EXPECT_EQ(model.rope_low_freq_factor, 1.5);
  EXPECT_EQ(model.rope_high_freq_factor, 5);
  EXPECT_EQ(model.rope_original_positions, 4096);
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_EQ(read_hf_config(replaced(kTinyLlama, old_form, parameters), "config.json"), model);
  EXPECT_EQ(read_hf_config(replaced(kTinyLlama, old_form, scaling + ", " + parameters), "both"),
            model);
  EXPECT_EQ(read_hf_config(write_hf_config(model, {}), "written"), model);
}

// transformers takes these names for the same sizes of a GPT-2.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"n_embd", "hidden_size"},
    {"n_layer", "num_hidden_layers"},
    {"n_head", "num_attention_heads"},
    {"n_positions", "max_position_embeddings"}};

TEST_F(Hf, Gpt2sSizesAreReadByBothNames) {
  const ModelConfig model = read_hf_config(kTinyGpt2, "config.json");
  std::string all = kTinyGpt2;
  for (const auto& [name, alias] : kAliases) {
    const std::string quoted = fmt::format("\"{}\"", name), other = fmt::format("\"{}\"", alias);
    EXPECT_EQ(read_hf_config(replaced(kTinyGpt2, quoted, other), "config.json"), model) << alias;
    all = replaced(all, quoted, other);
    const auto with_both = [&](int value) {
      return replaced(kTinyGpt2, "\"n_ctx\": 24", fmt::format("{}: {}", other, value));
    };
    const int right = std::map<std::string, int>{{"n_embd", 8}, {"n_positions", 24}}
                          .emplace(name, 2)
                          .first->second;
    EXPECT_EQ(read_hf_config(with_both(right), "config.json"), model) << alias;
    const std::string why = refusal([&] { read_hf_config(with_both(4), "config.json"); });
    EXPECT_NE(
        why.find(fmt::format("{} is {}: {} is 4, and both name the same size", name, right, alias)),
        std::string::npos)
        << why;
  }
  EXPECT_EQ(read_hf_config(all, "config.json"), model);
}

TEST_F(Hf, ASizeThatIsMissingIsNotGuessed) {
  const std::vector<const char*> gpt2 = {"vocab_size", "n_positions", "n_embd", "n_layer",
                                         "n_head"};
  const std::vector<const char*> llama = {"vocab_size",          "max_position_embeddings",
                                          "hidden_size",         "num_hidden_layers",
                                          "num_attention_heads", "intermediate_size"};
  for (const auto& [config, sizes] : {std::pair(kTinyGpt2, gpt2), std::pair(kTinyLlama, llama)})
    for (const char* size : sizes) {
      const std::string without =
          replaced(config, fmt::format("\"{}\"", size), fmt::format("\"no_{}\"", size));
      const std::string why = refusal([&] { read_hf_config(without, "config.json"); });
      EXPECT_TRUE(
          why.starts_with(fmt::format("config.json: {} is missing: needs a whole number", size)))
          << why;
    }
}

TEST_F(Hf, WhatOurModelCannotBeIsRefusedByKeyAndValue) {
  const auto why_not = [&](const std::string& config) {
    return refusal([&] { read_hf_config(config, "config.json"); });
  };
  const std::tuple<const char*, const char*, const char*, const char*> cases[] = {
      {kTinyLlama, "LlamaForCausalLM", "MistralForCausalLM",
       R"(architectures is ["MistralForCausalLM"]: only GPT2LMHeadModel)"},
      {kTinyLlama, R"("model_type": "llama")", R"("model_type": "gpt2")", "make them agree"},
      {kTinyLlama, R"("attention_bias": false)", R"("attention_bias": true)",
       "attention_bias is true"},
      {kTinyLlama, R"("mlp_bias": false)", R"("mlp_bias": true)", "mlp_bias is true"},
      {kTinyLlama, R"("silu")", R"("gelu")", R"(hidden_act is "gelu")"},
      {kTinyLlama, R"("head_dim": 4)", R"("head_dim": 8)", "head_dim is 8"},
      {kTinyLlama, R"("hidden_size": 16)", R"("hidden_size": 1e3)", "hidden_size is 1000.0"},
      {kTinyLlama, R"("hidden_size": 16)", R"("hidden_size": -16)", "hidden_size is -16"},
      {kTinyLlama, R"("num_key_value_heads": 2)", R"("num_key_value_heads": 3)", "kv_heads is 3"},
      {kTinyLlama, R"("num_attention_heads": 4)", R"("num_attention_heads": 0)",
       "num_attention_heads is 0"},
      {kTinyLlama, R"("rms_norm_eps": 1e-06)", R"("rms_norm_eps": 0)", "rms_norm_eps is 0"},
      {kTinyLlama, R"("head_dim": 4)", R"("quantization_config": {"bits": 4})",
       "quantization_config"},
      {kTinyGpt2, R"("gelu_new")", R"("relu")", R"(activation_function is "relu")"},
      {kTinyGpt2, R"("n_ctx": 24)", R"("scale_attn_by_inverse_layer_idx": true)",
       "scale_attn_by_inverse_layer_idx is true"},
      {kTinyGpt2, R"("n_ctx": 24)", R"("scale_attn_weights": false)",
       "scale_attn_weights is false"},
      {kTinyGpt2, R"("n_ctx": 24)", R"("add_cross_attention": true)",
       "add_cross_attention is true"},
      {kTinyGpt2, R"("n_ctx": 24)", R"("n_embd": 8)", "twice"},
      {kTinyGpt2, R"("n_head": 2)", R"("n_head": 3)", "heads is 3"},
      {kTinyGpt2, R"("n_layer": 2)", R"("n_layer": 0)", "layers"},
      {kTinyGpt2, "{", "[", "JSON"},
  };
  for (const auto& [config, from, to, word] : cases) {
    const std::string why = why_not(replaced(config, from, to));
    EXPECT_NE(why.find(word), std::string::npos) << to << ": " << why;
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
  }
}

TEST_F(Hf, WhatIsWrittenReadsBackAndHasBothForms) {
  for (const char* text : {kTinyGpt2, kTinyLlama}) {
    const ModelConfig model = read_hf_config(text, "config.json");
    const std::string written = write_hf_config(model, {.dtype = Dtype::bf16});
    EXPECT_EQ(read_hf_config(written, "written"), model);
    EXPECT_NE(written.find(R"("dtype": "bfloat16")"), std::string::npos);
    EXPECT_EQ(written.find("rope_theta") != std::string::npos, model.shape == ModelFamily::llama);
  }
}

TEST_F(Hf, TensorsThatAreMissingUnknownOrOfAnotherShapeAreNamed) {
  const auto with = [&](const char* change, const std::function<void(HfTensors&)>& edit) {
    HfTensors tensors = test::llama_tensors();
    edit(tensors);
    test::write_hf_folder(path(change), kTinyLlama, tensors);
    return import_refusal(change);
  };
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  EXPECT_NE(with("missing", [&](HfTensors& t) { t.erase(name); }).find("has no tensor \"" + name),
            std::string::npos);
  EXPECT_NE(with("unknown", [&](HfTensors& t) { t["model.layers.1.extra"] = {2}; })
                .find("\"model.layers.1.extra\" has no place in the model"),
            std::string::npos);
  EXPECT_NE(with("shape",
                 [&](HfTensors& t) {
                   t[name] = {16, 12};
                 })
                .find("has the shape [16, 12]: config.json says [12, 16]"),
            std::string::npos);
  test::write_hf_folder(path("tied"), kTinyGpt2, [] {
    HfTensors tensors = test::gpt2_tensors();
    tensors["lm_head.weight"] = {19, 8};
    return tensors;
  }());
  EXPECT_NE(import_refusal("tied").find("tie_word_embeddings"), std::string::npos);
  test::write_hf_folder(path("types"), kTinyGpt2, test::gpt2_tensors());
  RealFileSystem files;
  SafetensorsWriter(files, path("types/model.safetensors"), {{"wte.weight", Dtype::i32, {0}}}, {})
      .commit();
  EXPECT_NE(import_refusal("types").find("\"wte.weight\" is I32"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("missing-out")));
}

TEST_F(Hf, DamagedIndexesAreRefused) {
  const auto with = [&](const std::string& change, const std::string& from, const std::string& to) {
    test::write_hf_folder(path(change), kTinyLlama, test::llama_tensors(), Dtype::f32, true);
    const std::string index = path(change) + "/model.safetensors.index.json";
    const std::string text = replaced(test::read_text(index), from, to);
    std::ofstream(index) << text;
    return import_refusal(change);
  };
  const std::string shard = "model-00001-of-00003.safetensors";
  EXPECT_NE(with("outside", shard, "../" + shard).find("in this folder"), std::string::npos);
  EXPECT_NE(with("absent", shard, "model-00004-of-00003.safetensors").find("00004"),
            std::string::npos);
  EXPECT_NE(with("swapped", shard, "model-00002-of-00003.safetensors")
                .find("which the index says it has"),
            std::string::npos);
  EXPECT_NE(with("size", R"("total_size": )", R"("total_size": 1)").find("total_size is 1"),
            std::string::npos);
  EXPECT_NE(with("form", "weight_map", "map").find("has no weight_map"), std::string::npos);
  EXPECT_NE(with("left-out", R"("lm_head.weight": "model-00001-of-00003.safetensors",)", "")
                .find("\"lm_head.weight\" is not in the index"),
            std::string::npos);
  test::write_hf_folder(path("gone"), kTinyLlama, test::llama_tensors(), Dtype::f32, true);
  fs::remove(path("gone/" + shard));
  EXPECT_NE(import_refusal("gone").find(shard), std::string::npos);
  fs::create_directories(path("empty"));
  std::ofstream(path("empty/config.json")) << kTinyGpt2;
  EXPECT_NE(import_refusal("empty").find("holds neither"), std::string::npos);
}

TEST_F(Hf, NothingIsOverwritten) {
  test::write_hf_folder(path("gpt2"), kTinyGpt2, test::gpt2_tensors());
  import_hf(path("gpt2"), path("out"), {});
  EXPECT_NE(
      refusal([&] { import_hf(path("gpt2"), path("out"), {}); }, ExitCode::usage).find("saved"),
      std::string::npos);
  EXPECT_NE(refusal([&] { export_hf(path("out"), path("gpt2")); }, ExitCode::usage)
                .find("exists, and is not"),
            std::string::npos);
  export_hf(path("out"), path("new"));
}

TEST(Convert, HalvesAndBfloatsAreTheirValues) {
  const auto from = [](std::uint16_t bits, Dtype dtype) {
    Bytes bytes(2);
    std::memcpy(bytes.data(), &bits, 2);
    float value = 0;
    std::memcpy(&value, convert(bytes, dtype, Dtype::f32).data(), 4);
    return value;
  };
  EXPECT_EQ(from(0x3c00, Dtype::f16), 1.0F);
  EXPECT_EQ(from(0xc000, Dtype::f16), -2.0F);
  EXPECT_EQ(from(0x7bff, Dtype::f16), 65504.0F);
  EXPECT_EQ(from(0x0001, Dtype::f16), std::ldexp(1.0F, -24));
  EXPECT_EQ(from(0x03ff, Dtype::f16), 1023 * std::ldexp(1.0F, -24));
  EXPECT_TRUE(std::isinf(from(0x7c00, Dtype::f16)));
  EXPECT_TRUE(std::isnan(from(0x7e00, Dtype::f16)));
  EXPECT_EQ(from(0x3f80, Dtype::bf16), 1.0F);
  // To the nearest, ties to even.
  const auto to_bfloat = [](float value) {
    Bytes bytes(4);
    std::memcpy(bytes.data(), &value, 4);
    std::uint16_t bits = 0;
    std::memcpy(&bits, convert(bytes, Dtype::f32, Dtype::bf16).data(), 2);
    return bits;
  };
  EXPECT_EQ(to_bfloat(1 + 1.0F / 256), 0x3f80);
  EXPECT_EQ(to_bfloat(1 + 3.0F / 256), 0x3f82);
  EXPECT_EQ(to_bfloat(1 + 1.01F / 256), 0x3f81);
  EXPECT_EQ(to_bfloat(-1), 0xbf80);
}

}  // namespace
}  // namespace sluice
