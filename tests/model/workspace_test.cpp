// What ops allocate beyond what they keep, watched at the allocator.
#include "cost/workspace.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/stage.h"

namespace sluice {
namespace {

// Bytes that this thread has allocated and not freed since it began to watch.
class Watch : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    live_ += size;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  // The most that `op` held beyond what was there before it and beyond what it left.
  template <typename F>
  std::int64_t beyond(F&& op) {
    const std::int64_t before = live_;
    peak_ = live_;
    op();
    return peak_ - std::max(before, live_);
  }

 private:
  std::int64_t live_ = 0, peak_ = 0;
};

// Short sequences, so that what the attention kernel itself needs is small: its blocks have a fixed
// size, at most about a MiB for each thread.
constexpr std::int64_t kSequences = 16, kLength = 64;

struct Case {
  ModelFamily family;
  at::ScalarType dtype, gradient_dtype;
  RecomputeLevel level;
  int slices;
  StageLayers layers;
};

ModelShape shape_of(ModelFamily family) {
  const bool llama = family == ModelFamily::llama;
  ModelShape shape;
  shape.family = family;
  shape.layers = 2;
  shape.dim = 64;
  shape.heads = 4;
  shape.kv_heads = llama ? 2 : 4;
  shape.ffn_dim = llama ? 192 : 256;
  shape.vocab_size = 512;
  shape.positions = llama ? 0 : kLength;
  return shape;
}

// One microbatch through F, I and W of one stage: the largest of each.
OpWorkspace measure(const Case& c) {
  const auto watch = std::make_shared<Watch>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
  at::set_num_threads(1);
  const ModelShape shape = shape_of(c.family);
  Stage stage({.shape = shape,
               .first_layer = c.layers.first,
               .end_layer = c.layers.end,
               .embedding = c.layers.embedding,
               .head = c.layers.head,
               .level = c.level,
               .seed = 1,
               .kind = {c.dtype, c.gradient_dtype}});
  SliceBounds bounds;
  for (std::int64_t slice = 0; slice <= c.slices; ++slice)
    bounds.push_back(kLength * slice / c.slices);
  stage.begin_step(bounds, 1);
  const at::Tensor tokens = at::arange(kSequences * kLength, at::kLong)
                                .remainder(shape.vocab_size)
                                .view({kSequences, kLength});
  const Microbatch batch{tokens, tokens, {}};
  const auto boundary = [&] {
    return at::ones({kSequences * kLength / c.slices, shape.dim}, c.dtype);
  };
  OpWorkspace most;
  std::vector<at::Tensor> outputs(static_cast<std::size_t>(c.slices));
  for (int slice = 0; slice < c.slices; ++slice) {
    at::Tensor in = c.layers.embedding ? at::Tensor() : boundary();
    at::Tensor& out = outputs[static_cast<std::size_t>(slice)];
    most.f = std::max(most.f, watch->beyond([&] {
      out = stage.forward(0, slice, batch, in);
      in = at::Tensor();
    }));
    if (!c.layers.head) out = at::Tensor();
  }
  for (int slice = c.slices - 1; slice >= 0; --slice) {
    at::Tensor in =
                   c.layers.head ? std::move(outputs[static_cast<std::size_t>(slice)]) : boundary(),
               out;
    most.i = std::max(most.i, watch->beyond([&] {
      out = stage.input_grad(0, slice, in);
      in = at::Tensor();
    }));
  }
  for (int slice = c.slices - 1; slice >= 0; --slice)
    most.w = std::max(most.w, watch->beyond([&] { stage.weight_grad(0, slice); }));
  return most;
}

// Not a twentieth below, not a quarter above, but for the crumbs: biases, statistics, positions.
void expect_close(std::int64_t estimated, std::int64_t measured) {
  constexpr std::int64_t kCrumbs = 64 << 10;
  EXPECT_GE(static_cast<double>(estimated + kCrumbs), 0.95 * static_cast<double>(measured));
  EXPECT_LE(static_cast<double>(estimated), 1.25 * static_cast<double>(measured + kCrumbs));
}

TEST(Workspace, EstimatesAreWhatTheAllocatorSees) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert})
    for (const auto& [dtype, gradient_dtype] :
         {std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kFloat},
          std::pair{at::kBFloat16, at::kBFloat16}})
      for (const int slices : {1, 4}) {
        if (slices > 1 && family == ModelFamily::bert) continue;
        const auto type = dtype, gradient_type = gradient_dtype;
        const auto check = [&](RecomputeLevel level, const StageLayers& layers,
                               OpWorkspace (*estimate)(const StashQuery&)) {
          SCOPED_TRACE(testing::Message()
                       << "family " << static_cast<int>(family) << " level "
                       << static_cast<int>(level) << " in " << c10::toString(type)
                       << ", gradients in " << c10::toString(gradient_type) << ", " << slices
                       << " slices, " << (layers.embedding ? "embedding" : "")
                       << (layers.head ? "head" : ""));
          const OpWorkspace estimated = estimate(
              {.shape = shape_of(family),
               .level = level,
               .tokens = kSequences * kLength / slices,
               .element_bytes = static_cast<std::int64_t>(c10::elementSize(type)),
               .gradient_bytes = static_cast<std::int64_t>(c10::elementSize(gradient_type)),
               .sliced = slices > 1});
          const OpWorkspace measured =
              measure({family, type, gradient_type, level, slices, layers});
          expect_close(estimated.f, measured.f);
          expect_close(estimated.i, measured.i);
          expect_close(estimated.w, measured.w);
        };
        for (const RecomputeLevel level :
             {RecomputeLevel::none, RecomputeLevel::elementwise, RecomputeLevel::mlp,
              RecomputeLevel::all_but_attention, RecomputeLevel::full})
          check(level, {0, 2, false, false}, block_workspace);
        check(RecomputeLevel::none, {0, 0, true, false}, embedding_workspace);
        check(RecomputeLevel::none, {0, 0, false, true}, head_workspace);
      }
}

}  // namespace
}  // namespace sluice
