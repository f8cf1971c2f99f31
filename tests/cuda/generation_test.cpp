// What a whole model says on a GPU: against the CPU, and through the commands.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cuda/on_gpu.h"
#include "sluice/base/text.h"
#include "sluice/model/decoder.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

constexpr std::int64_t kTokens = 90;

ModelShape shape_of(ModelFamily family, std::int64_t heads, std::int64_t kv_heads,
                    std::int64_t head_dim) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 3;
  shape.dim = heads * head_dim;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.ffn_dim = 3 * shape.dim + 2;
  shape.vocab_size = 101;
  shape.positions = family == ModelFamily::gpt2 ? kTokens : 0;
  return shape;
}

class CudaDecoder : public test::OnGpu {
 protected:
  static std::vector<ModelShape> shapes() {
    using enum ModelFamily;
    return {shape_of(llama, 4, 4, 64), shape_of(llama, 4, 2, 128), shape_of(gpt2, 4, 4, 32),
            shape_of(llama, 4, 2, 6), shape_of(gpt2, 3, 3, 10)};
  }

  // The weights of the first, wide enough that every part of the model shows in the logits.
  static void fill(Decoder& first, std::initializer_list<Decoder*> others) {
    const std::vector<Parameter*> parameters = first.parameters();
    for (Parameter* parameter : parameters)
      if (parameter->value.dim() > 1)
        initialise_normal(parameter->value, 5, parameter->name,
                          1 / std::sqrt(static_cast<double>(parameter->value.size(1))));
    for (Decoder* other : others) {
      const std::vector<Parameter*> theirs = other->parameters();
      for (std::size_t n = 0; n < theirs.size(); ++n)
        theirs[n]->value.copy_(parameters[n]->value);
    }
  }

  static TensorKind on_gpu(at::ScalarType dtype) {
    TensorKind kind = dtype;
    kind.device = at::Device(at::kCUDA, 0);
    return kind;
  }

  // One sequence in pieces: a prompt, token by token, some at once, and on from there.
  static std::vector<std::size_t> pieces() { return {7, 1, 1, 1, 1, 20, 1, 1, 1, 33, 1, 1}; }
};

TEST_F(CudaDecoder, LogitsAreThoseOfTheCpu) {
  for (const ModelShape& shape : shapes())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(
          fmt::format("{} heads of {}, {}", shape.heads, shape.head_dim(), c10::toString(dtype)));
      Decoder gpu(shape, on_gpu(dtype)), cpu(shape, dtype), wide(shape, at::kFloat);
      fill(cpu, {&gpu, &wide});
      std::vector<std::int32_t> tokens;
      double ours = 0, theirs = 0;
      for (const std::size_t count : pieces()) {
        for (std::size_t n = 0; n < count; ++n)
          tokens.push_back(static_cast<std::int32_t>(tokens.size() * 31 % 101));
        const auto next = std::span(tokens).last(count);
        const at::Tensor expected = wide.feed(next);
        ours = std::max(ours, test::distance(gpu.feed(next), expected));
        theirs = std::max(theirs, test::distance(cpu.feed(next), expected));
        EXPECT_EQ(gpu.length(), static_cast<std::int64_t>(tokens.size()));
      }
      EXPECT_LE(ours, dtype == at::kFloat ? 1e-5 : 2 * theirs);
      // After each token, and from the beginning again.
      gpu.restart();
      wide.restart();
      std::vector<at::Tensor> expected, got;
      const auto take = [](std::vector<at::Tensor>& into) {
        return [&into](std::int64_t, const at::Tensor& logits) { into.push_back(logits.cpu()); };
      };
      gpu.feed_each(tokens, take(got));
      wide.feed_each(tokens, take(expected));
      EXPECT_LE(test::distance(at::cat(got), at::cat(expected)),
                dtype == at::kFloat ? 1e-5 : 2 * theirs);
    }
}

TEST_F(CudaDecoder, TheLikeliestTokensAreThoseOfTheCpu) {
  for (const ModelShape& shape : shapes()) {
    SCOPED_TRACE(fmt::format("{} heads of {}", shape.heads, shape.head_dim()));
    Decoder gpu(shape, on_gpu(at::kFloat)), cpu(shape, at::kFloat);
    fill(cpu, {&gpu});
    std::vector<std::int32_t> drawn[2];
    for (const bool on_gpu : {false, true}) {
      Decoder& decoder = on_gpu ? gpu : cpu;
      std::vector<std::int32_t> next = {7, 100, 30};
      while (decoder.length() + static_cast<std::int64_t>(next.size()) <= kTokens) {
        next = {static_cast<std::int32_t>(decoder.feed(next).argmax().item<std::int64_t>())};
        drawn[on_gpu].push_back(next[0]);
      }
    }
    EXPECT_EQ(drawn[0].size(), static_cast<std::size_t>(kTokens) - 2);
    EXPECT_EQ(drawn[0], drawn[1]);
  }
}

class CudaCommands : public test::TinyRun {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::why_not(); !reason.empty()) GTEST_SKIP() << reason;
    std::string tokens;
    for (int n = 0; n < 150; ++n)
      tokens += fmt::format("{}\n", "line of a small text"[n % 20] + 0);
    folder_.write("tokens.txt", tokens);
  }

  Ran good(const std::string& arguments) const {
    Ran ran = sluice(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << ": " << ran.err;
    return ran;
  }
  double evaluated(const std::string& flags) const {
    const Ran ran = good("evaluate checkpoints --tokens tokens.txt --format json " + flags);
    return ran.code == 0 ? Json::parse(ran.out)["loss"].get<double>() : 0;
  }
  // After the last step.
  double validation_loss() const {
    const std::string text = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
    const Json row = Json::parse(split(trim(text), '\n').back());
    EXPECT_TRUE(row.contains("validation_loss")) << row;
    return row.value("validation_loss", 0.0);
  }
};

TEST_F(CudaCommands, AGpuValidatesSamplesGeneratesAndEvaluatesAsTheCpuDoes) {
  for (const char* shape : {"gpt2", "llama"}) {
    SCOPED_TRACE(shape);
    std::string samples[2];
    double validation[2];
    for (const bool on_gpu : {false, true}) {
      clear();
      samples[on_gpu] = good(fmt::format("train run.toml --model.shape={} --cluster.device={} "
                                         "'--generate.prompt=line ' --model.positions=300 "
                                         "--training.steps=40",
                                         shape, on_gpu ? "cuda" : "cpu"))
                            .out;
      samples[on_gpu].erase(0, samples[on_gpu].find("\nline "));
      validation[on_gpu] = validation_loss();
    }
    EXPECT_NEAR(validation[1], validation[0], 1e-4 * validation[0]);
    // The same weights, the same random numbers.
    EXPECT_EQ(good("generate checkpoints --prompt 'line '").out, samples[1].substr(1));
    const std::string flags =
        "generate checkpoints --prompt-ids 108,105,110,101,32 --tokens 100 --temperature 0";
    EXPECT_EQ(good(flags + " --device cuda").out, good(flags).out);
    const double loss = evaluated("");
    EXPECT_NEAR(evaluated("--device cuda"), loss, 1e-5 * loss);
    EXPECT_EQ(good("evaluate checkpoints --tokens tokens.txt --device cuda --logits logits").code,
              0);
  }
}

TEST_F(CudaCommands, HalfPrecisionStaysNearTheCpus) {
  good("train run.toml --cluster.device=cuda --training.dtype=bfloat16 '--generate.prompt=line '");
  const double loss = evaluated("");
  EXPECT_NEAR(evaluated("--device cuda"), loss, 1e-2 * loss);
  const Ran ran = good("generate checkpoints --prompt line --tokens 100 --device cuda");
  EXPECT_TRUE(ran.out.starts_with("line")) << ran.out;
}

TEST_F(CudaCommands, AFullGpuIsToldInOneLine) {
  good("train run.toml --training.steps=1");
  const auto expect_full = [&](const std::string& command, const std::string& full,
                               const std::string& remedy) {
    const Ran ran = test::run_shell(
        fmt::format("PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.000001 '{}' {}",
                    SLUICE_ENGINE_BINARY, command),
        folder_.path());
    EXPECT_EQ(ran.code, 75) << ran.err;
    EXPECT_NE(ran.err.find(full), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find(remedy), std::string::npos) << ran.err;
    return ran.err;
  };
  const std::string said = expect_full("generate checkpoints --prompt a --device cuda",
                                       "out of GPU memory", "use --device cpu");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  expect_full("train run.toml --cluster.device=cuda", "weights need 0.00 GiB",
              "optimizer.state_dtype");
}

}  // namespace
}  // namespace sluice
