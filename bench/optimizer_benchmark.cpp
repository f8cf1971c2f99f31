// How long an update of the weights takes: SGD, AdamW, NAdam and Muon on the matrices of a few
// Llama layers, one JSON object for each. `of_adamw` is relative to AdamW in the same run. Muon's
// limit is its matmuls: `tflops` is what they reach, `of_matmul` relative to one plain matmul of
// the same side. optimizer_benchmark [cuda] [LAYERS]: on the CPU 2 layers of width 512 in fp32, on
// a GPU 24 of width 2048 (the 1.35B model) in bf16 with fp32 masters.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "sluice/base/names.h"
#include "sluice/cuda/device.h"
#include "sluice/optim/optimizer.h"

namespace sluice {
namespace {

struct Sizes {
  std::int64_t layers = 2, dim = 512, ffn = 1408;
};

class Stopwatch {
 public:
  explicit Stopwatch(bool gpu) : gpu_(gpu) {}
  // Milliseconds, the median of a few runs.
  double operator()(const std::function<void()>& run) const {
    constexpr int kWarmUp = 2, kRuns = 9;
    std::vector<double> times;
    for (int n = 0; n < kWarmUp + kRuns; ++n) {
      const double taken = gpu_ ? on_gpu(run) : on_cpu(run);
      if (n >= kWarmUp) times.push_back(taken);
    }
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return 1e3 * times[kRuns / 2];
  }

 private:
  static double on_cpu(const std::function<void()>& run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  static double on_gpu(const std::function<void()>& run) {
    cuda::Moment begin, end;
    begin.record();
    run();
    end.record();
    end.wait();
    return end.seconds_since(begin);
  }
  bool gpu_;
};

std::vector<Weight> weights_of(const Sizes& s, const at::TensorOptions& options, bool matrices) {
  std::vector<Weight> weights;
  for (std::int64_t layer = 0; layer < s.layers; ++layer)
    for (const auto& [name, rows, columns] : {std::tuple{"attention.q", s.dim, s.dim},
                                              {"attention.k", s.dim, s.dim},
                                              {"attention.v", s.dim, s.dim},
                                              {"attention.out", s.dim, s.dim},
                                              {"mlp.gate", s.ffn, s.dim},
                                              {"mlp.up", s.ffn, s.dim},
                                              {"mlp.down", s.dim, s.ffn}}) {
      Weight weight;
      weight.name = fmt::format("layers.{}.{}.weight", layer, name);
      weight.value = at::randn({rows, columns}, options) * 0.02;
      weight.gradient = at::randn({rows, columns}, options.dtype(at::kFloat));
      weight.own = {0, rows};
      if (matrices) weight.matrix = Weight::Matrix{rows, columns, 0};
      weights.push_back(weight);
    }
  return weights;
}

// Of one iteration over all matrices: X X^T, its square, and both times X.
double muon_flops(const std::vector<Weight>& weights, int steps) {
  double flops = 0;
  for (const Weight& weight : weights) {
    const auto rows = static_cast<double>(weight.value.size(0)),
               columns = static_cast<double>(weight.value.size(1));
    const double side = std::min(rows, columns);
    flops += steps * 2 * side * side * (2 * std::max(rows, columns) + side);
  }
  return flops;
}

double matmul_tflops(const Sizes& s, const at::TensorOptions& options, const Stopwatch& ms) {
  const at::Tensor a = at::randn({s.dim, s.dim}, options);
  const auto side = static_cast<double>(s.dim);
  return 2 * side * side * side / ms([&] { at::matmul(a, a); }) / 1e9;
}

void measure(const Sizes& s, bool gpu) {
  const Stopwatch ms(gpu);
  const at::TensorOptions options =
      at::TensorOptions(gpu ? at::kCUDA : at::kCPU).dtype(gpu ? at::kBFloat16 : at::kFloat);
  double adamw = 0;
  struct Case {
    OptimizerKind kind;
    IterationType type;
  };
  std::vector<Case> cases = {{OptimizerKind::adamw, IterationType::float32},
                             {OptimizerKind::sgd, IterationType::float32},
                             {OptimizerKind::nadam, IterationType::float32},
                             {OptimizerKind::muon, IterationType::float32}};
  if (gpu) cases.push_back({OptimizerKind::muon, IterationType::bfloat16});
  for (const Case& c : cases) {
    const bool muon = c.kind == OptimizerKind::muon;
    const std::vector<Weight> weights = weights_of(s, options, muon);
    const OptimizerConfig config{.name = c.kind, .muon_dtype = c.type};
    Optimizer optimizer(config, 0, weights);
    std::int64_t step = 0;
    const double taken = ms([&] { optimizer.step(++step, 1e-4, 1); });
    if (c.kind == OptimizerKind::adamw) adamw = taken;
    std::string more;
    if (muon) {
      const double tflops = muon_flops(weights, config.muon_steps) / taken / 1e9;
      const auto type = c.type == IterationType::bfloat16 ? at::kBFloat16 : at::kFloat;
      more =
          fmt::format(R"(, "iteration": "{}", "tflops": {:.3f}, "of_matmul": {:.3f})",
                      name_of(c.type), tflops, tflops / matmul_tflops(s, options.dtype(type), ms));
    }
    fmt::print(R"({{"optimizer": "{}", "device": "{}", "layers": {}, "dim": {}, "ms": {:.3f}, )"
               R"("of_adamw": {:.2f}{}}})"
               "\n",
               name_of(c.kind), gpu ? "cuda" : "cpu", s.layers, s.dim, taken, taken / adamw, more);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const bool gpu = argc > 1 && std::string(argv[1]) == "cuda";
  sluice::Sizes sizes;
  if (gpu) sizes = {24, 2048, 5504};
  if (argc > 1 + gpu) sizes.layers = std::stoll(argv[1 + gpu]);
  sluice::measure(sizes, gpu);
}
