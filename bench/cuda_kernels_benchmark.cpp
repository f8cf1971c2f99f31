// How close our CUDA kernels come to the memory's speed, at the shapes of the 1.35B model: one JSON
// object for each, with the fewest bytes it could move and its share of the speed of a plain copy.
// Then the products of a block, on ATen's choice of cuBLAS's algorithms and on ours. A number as
// argument: on a partition of so many SMs.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/cuda/device.h"
#include "sluice/cuda/functions.h"
#include "sluice/cuda/products.h"

namespace sluice {
namespace {

constexpr std::int64_t kBatch = 8, kLength = 4096, kTokens = kBatch * kLength;
constexpr std::int64_t kHeads = 16, kHeadDim = 128, kDim = kHeads * kHeadDim;
constexpr std::int64_t kFfn = 5504, kGeluFfn = 8192, kWords = 32000;
constexpr std::int64_t kWeight = 2 * kFfn * kDim;  // elements of the largest weight in a block

at::TensorOptions options(at::ScalarType type) { return at::TensorOptions(at::kCUDA).dtype(type); }
at::Tensor bf16(at::IntArrayRef sizes) { return at::randn(sizes, options(at::kBFloat16)); }

struct Times {
  double best = 0, median = 0;
};

class Stopwatch {
 public:
  // Each run comes behind a long copy, so that the GPU never waits for the host and nothing of the
  // run before is left in its cache.
  Times operator()(const std::function<void()>& run) {
    constexpr int kWarmUp = 3, kRuns = 20;
    std::vector<double> seconds;
    for (int n = 0; n < kWarmUp + kRuns; ++n) {
      to_.copy_(from_);
      cuda::Moment start, end;
      start.record();
      run();
      end.record();
      end.wait();
      if (n >= kWarmUp) seconds.push_back(end.seconds_since(start));
    }
    std::sort(seconds.begin(), seconds.end());
    return {seconds.front(), seconds[seconds.size() / 2]};
  }
  double copy_bytes() const { return 2 * static_cast<double>(from_.nbytes()); }
  void copy() { to_.copy_(from_); }

 private:
  at::Tensor from_ = at::ones({1 << 30}, options(at::kByte)), to_ = at::empty_like(from_);
};

class Report {
 public:
  Report() {
    add("copy", watch_.copy_bytes(), [this] { watch_.copy(); });
  }

  // `bytes`: read and written, at least.
  void add(const std::string& kernel, double bytes, const std::function<void()>& run) {
    const Times times = watch_(run);
    const double speed = bytes / times.median;
    if (copy_speed_ == 0) copy_speed_ = speed;
    fmt::print(
        "{{\"kernel\": \"{}\", \"best_us\": {:.1f}, \"median_us\": {:.1f}, \"bytes\": {:.0f}, "
        "\"tb_per_s\": {:.3f}, \"of_copy\": {:.3f}}}\n",
        kernel, times.best * 1e6, times.median * 1e6, bytes, speed * 1e-12, speed / copy_speed_);
    std::fflush(stdout);
  }

 private:
  Stopwatch watch_;
  double copy_speed_ = 0;
};

double elements(std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

void norms(Report& report) {
  const at::Tensor x = bf16({kTokens, kDim}), addend = bf16({kTokens, kDim}), weight = bf16({kDim}),
                   bias = bf16({kDim});
  const double row = 2 * elements(kTokens, kDim);
  at::Tensor sum;
  for (const bool layer : {false, true}) {
    const std::string name = layer ? "layer_norm" : "rms_norm";
    const at::Tensor b = layer ? bias : at::Tensor();
    report.add(name, 2 * row, [&] { cuda::norm(x, weight, b, 1e-5); });
    report.add("add_" + name, 4 * row, [&] { cuda::add_norm(x, addend, weight, b, 1e-5, sum); });
    const cuda::NormResult result = cuda::norm(x, weight, b, 1e-5);
    report.add(name + "_backward", 4 * row,
               [&] { cuda::norm_backward(addend, x, weight, result.mean, result.rstd, addend); });
  }
}

void activations(Report& report) {
  struct Case {
    const char* name;
    cuda::Activation kind;
    std::int64_t width, parts;
  };
  for (const Case& c : {Case{"swiglu", cuda::Activation::swiglu, kFfn, 2},
                        Case{"gelu_tanh", cuda::Activation::gelu_tanh, kGeluFfn, 1},
                        Case{"gelu_erf", cuda::Activation::gelu_erf, kGeluFfn, 1}}) {
    const at::Tensor u = bf16({kTokens, c.parts * c.width}), da = bf16({kTokens, c.width});
    const double part = 2 * elements(kTokens, c.width), parts = static_cast<double>(c.parts);
    report.add(c.name, (parts + 1) * part, [&] { cuda::activation(c.kind, u); });
    report.add(fmt::format("{}_backward", c.name), (2 * parts + 1) * part,
               [&] { cuda::activation_backward(c.kind, da, u); });
  }
}

void attentions(Report& report) {
  const double heads = 2 * elements(kTokens, kDim);  // bytes of q, k or v
  at::Tensor qkv = bf16({kTokens, 3 * kDim});
  const at::Tensor angle = at::rand({kLength, kHeadDim / 2}, options(at::kFloat));
  const at::Tensor cosine = angle.cos(), sine = angle.sin();
  report.add("rotate", 4 * heads, [&] { cuda::rotate(qkv, 2 * kHeads, kHeadDim, cosine, sine); });
  at::Tensor a = bf16({kBatch, kLength, kHeads, kHeadDim}).transpose(1, 2);
  const at::Tensor b = bf16({kBatch, kLength, kHeads, kHeadDim}).transpose(1, 2),
                   c = bf16({kBatch, kHeads, kLength, kHeadDim});
  report.add("join_heads", 6 * heads, [&] { cuda::join_heads({a, b, b}, {}, cosine, sine); });
  report.add("join_heads_apart", 6 * heads, [&] { cuda::join_heads({c, c, c}, {}, cosine, sine); });
  at::Tensor a_lse = at::randn({kBatch, kHeads, kLength}, options(at::kFloat));
  const at::Tensor b_lse = at::randn_like(a_lse);
  const std::vector<at::Tensor> parts = {b.slice(2, 0, kLength / 2), b.slice(2, kLength / 2)};
  report.add("join_tokens", 2 * heads, [&] { cuda::join_tokens(parts); });
  std::vector<at::Tensor> keys(2), values(2);
  const std::vector<std::int64_t> lengths(2, kLength / 2);
  cuda::add_keys(b, b, lengths, keys, values);
  report.add("add_keys", 10 * heads, [&] { cuda::add_keys(b, b, lengths, keys, values); });
  report.add("merge_attention", 3 * heads + 12 * elements(kTokens, kHeads),
             [&] { cuda::merge_attention(a, a_lse, b, b_lse); });
}

void ends(Report& report) {
  at::Tensor loss = at::zeros({1}, options(at::kDouble));
  for (const std::int64_t words : {kWords, std::int64_t{50257}}) {
    const std::int64_t tokens = kTokens / 2;
    at::Tensor logits = bf16({tokens, words});
    const at::Tensor targets = at::randint(words, {tokens}, options(at::kLong));
    report.add(fmt::format("cross_entropy_{}", words), 4 * elements(tokens, words),
               [&] { cuda::cross_entropy(logits, targets, 1e-4, true, loss); });
    report.add(fmt::format("cross_entropy_{}_loss_only", words), 2 * elements(tokens, words),
               [&] { cuda::cross_entropy(logits, targets, 1e-4, false, loss); });
  }
  at::Tensor gradient = at::zeros({kWords, kDim}, options(at::kFloat));
  const at::Tensor rows = at::randint(kWords, {kTokens}, options(at::kLong)),
                   d_rows = bf16({kTokens, kDim});
  const std::int64_t distinct = std::get<0>(at::_unique2(rows)).numel();
  report.add("add_rows", 2 * elements(kTokens, kDim) + 8 * elements(distinct, kDim),
             [&] { cuda::add_rows(gradient, rows, d_rows); });
}

void updates(Report& report) {
  struct Case {
    const char* name;
    at::ScalarType gradient, moments;
    bool master, stochastic;
    double bytes;  // for each element
  };
  for (const Case& c :
       {Case{"update_bf16", at::kBFloat16, at::kBFloat16, false, false, 14},
        Case{"update_bf16_by_chance", at::kBFloat16, at::kBFloat16, false, true, 14},
        Case{"update_bf16_fp32_gradient", at::kFloat, at::kBFloat16, false, true, 16},
        Case{"update_fp32_master", at::kFloat, at::kFloat, true, false, 30}}) {
    cuda::Update update;
    update.value = bf16({kWeight});
    if (c.master) update.master = update.value.to(at::kFloat);
    update.gradient = at::randn({kWeight}, options(c.gradient));
    update.first_moment = at::zeros({kWeight}, options(c.moments));
    update.second_moment = at::ones({kWeight}, options(c.moments));
    update.rates.rate = 1e-5f;
    update.stochastic = c.stochastic;
    report.add(c.name, c.bytes * static_cast<double>(kWeight), [&] { cuda::update(update); });
  }
}

void squares(Report& report) {
  constexpr std::int64_t kBlocks = 64;
  for (const std::int64_t rows : {2 * kFfn, kDim})
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor gradient = at::randn({rows, kDim}, options(type));
      at::Tensor out = at::empty({kBlocks}, options(at::kDouble));
      std::vector<std::int64_t> bounds;
      for (std::int64_t b = 0; b <= kBlocks; ++b)
        bounds.push_back(rows * b / kBlocks);
      report.add(fmt::format("block_squares_{}_{}", rows, type == at::kFloat ? "fp32" : "bf16"),
                 static_cast<double>(gradient.nbytes()),
                 [&] { cuda::block_squares(gradient, bounds, out); });
    }
}

// F, I and W of the four linear layers of a block.
void products(std::int64_t tokens) {
  Stopwatch watch;
  struct Layer {
    const char* name;
    std::int64_t in, out;
  };
  for (const Layer& layer : {Layer{"qkv", kDim, 3 * kDim}, Layer{"out", kDim, kDim},
                             Layer{"up", kDim, 2 * kFfn}, Layer{"down", kFfn, kDim}}) {
    const at::Tensor weight = bf16({layer.out, layer.in}), x = bf16({tokens, layer.in}),
                     dy = bf16({tokens, layer.out});
    at::Tensor y = at::empty_like(dy), dx = at::empty_like(x), dw = at::zeros_like(weight);
    const double flops = 2 * elements(tokens, layer.in) * static_cast<double>(layer.out);
    const auto compare = [&](const char* op, const std::function<void()>& aten,
                             const std::function<void()>& ours) {
      const double before = watch(aten).median, now = watch(ours).median;
      fmt::print(
          "{{\"product\": \"{} {}\", \"tokens\": {}, \"aten_us\": {:.1f}, \"us\": {:.1f}, "
          "\"tflops\": {:.1f}, \"ratio\": {:.3f}}}\n",
          layer.name, op, tokens, before * 1e6, now * 1e6, flops / now * 1e-12, before / now);
      std::fflush(stdout);
    };
    compare(
        "F", [&] { at::mm_out(y, x, weight.t()); }, [&] { cuda::product_into(y, x, weight.t()); });
    compare(
        "I", [&] { at::mm_out(dx, dy, weight); }, [&] { cuda::product_into(dx, dy, weight); });
    compare(
        "W", [&] { dw.addmm_(dy.t(), x); }, [&] { cuda::add_product(dw, dy.t(), x); });
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (const std::string reason = sluice::cuda::why_not(); !reason.empty()) {
    fmt::print(stderr, "skipped: {}\n", reason);
    return 77;
  }
  // On as many SMs, where it is said how many.
  std::optional<sluice::cuda::Partitions> part;
  std::optional<sluice::cuda::RankStream> stream;
  if (argc > 1) {
    part.emplace(0, 1, std::atoi(argv[1]));
    stream.emplace(*part, 0);
  }
  sluice::Report report;
  sluice::norms(report);
  sluice::activations(report);
  sluice::attentions(report);
  sluice::ends(report);
  sluice::updates(report);
  sluice::squares(report);
  for (const std::int64_t tokens : {sluice::kLength / 4, sluice::kLength, sluice::kTokens})
    if (!part || tokens < sluice::kTokens) sluice::products(tokens);
  const sluice::cuda::Products::Tried tried = sluice::cuda::products().tried();
  fmt::print("{{\"shapes\": {}, \"algorithms\": {}, \"of_other_bits\": {}, \"seconds\": {:.2f}}}\n",
             tried.shapes, tried.algorithms, tried.of_other_bits, tried.seconds);
  return 0;
}
