// Trains a pipeline whose layers are a torch::nn module of our own, through ZB-V on two ranks, on a
// small made-up language. Prints the loss as it falls.
//
//   cmake --build build/engine --target own_layer && build/engine/examples/own_layer/own_layer
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "sluice/comm/threads/threads.h"
#include "sluice/model/autograd_layer.h"
#include "sluice/plan/plan_run.h"
#include "sluice/runtime/trainer.h"

namespace {

constexpr int kRanks = 2, kLength = 32, kVocabulary = 27;

// No attention and no convolution: a learned triangle mixes earlier tokens into later ones, and a
// gate decides how much of that passes.
class MixerImpl : public torch::nn::Module {
 public:
  MixerImpl(std::int64_t dim, std::int64_t length)
      : norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})))),
        in_(register_module("in", torch::nn::Linear(dim, 2 * dim))),
        out_(register_module("out", torch::nn::Linear(dim, dim))),
        mix_(register_parameter("mix", torch::empty({length, length}))) {}

  // (sequences, tokens, dim) -> the same
  torch::Tensor forward(const torch::Tensor& x) {
    const auto halves = in_->forward(norm_->forward(x)).chunk(2, -1);
    return x + out_->forward(torch::silu(halves[0]) * torch::matmul(mix_.tril(), halves[1]));
  }

 private:
  torch::nn::LayerNorm norm_;
  torch::nn::Linear in_, out_;
  torch::Tensor mix_;
};

// Words of letters 1..26 and blanks: each word counts up from a letter, so that what follows is
// known except after a blank.
std::vector<std::int32_t> made_up_language() {
  std::vector<std::int32_t> tokens;
  std::uint32_t state = 1;
  while (tokens.size() < 20'000) {
    state = state * 1664525u + 1013904223u;
    const auto letter = static_cast<std::int32_t>((state >> 24) % 20);
    for (std::int32_t n = 1; n <= 6; ++n)
      tokens.push_back(letter + n);
    tokens.push_back(0);
  }
  return tokens;
}

}  // namespace

int main() {
  // As in a configuration file; sluice::load_config reads one.
  sluice::Config config;
  config.model.layers = 4;  // one for each of ZB-V's stages
  config.model.dim = 32;
  config.model.vocab_size = kVocabulary;
  config.training.steps = 40;
  config.training.sequence_length = kLength;
  config.training.global_batch_size = 8;
  config.optimizer.lr = 0.01;
  config.parallelism.pipeline_parallel_degree = kRanks;
  config.parallelism.pipeline_parallel_schedule = "zb-v";
  config.parallelism.num_microbatches = 4;
  config.comm.backend = sluice::Backend::threads;
  const sluice::RunPlan plan = sluice::plan_run(config).plan;

  sluice::Machine machine;
  machine.make_layer = [](const sluice::LayerOptions& layer) {
    return sluice::wrap_module(layer, std::make_shared<MixerImpl>(layer.shape.dim, kLength));
  };

  const std::vector<std::int32_t> tokens = made_up_language();
  const sluice::Dataset data(
      sluice::memory_source(tokens, {0, static_cast<std::int64_t>(tokens.size())}),
      {.sequence_length = kLength, .vocab_size = kVocabulary});
  sluice::run_threads(kRanks, {}, [&](sluice::Communicator& world) {
    at::set_num_threads(1);
    sluice::Trainer trainer(plan, data, world, machine);
    for (std::int64_t step = 1; step <= config.training.steps; ++step) {
      const sluice::StepResult result = trainer.step(step);
      if (world.rank() == 0 && (step == 1 || step % 10 == 0))
        fmt::print("step {:2}  loss {:.3f}  stash of rank 0 {} bytes\n", step, result.loss,
                   result.executed.peak_stash_bytes);
    }
  });
}
