// What ops allocate beyond what they keep, watched at the allocator.
#include "sluice/run/workspace.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sluice/base/names.h"
#include "sluice/model/stage.h"
#include "support/plans.h"

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

// The embedding alone, two layers and the head alone.
enum Part { kEmbedding, kLayers, kHead };

RunPlan plan_of(ModelFamily family, int slices) {
  SliceBounds bounds;
  for (std::int64_t slice = 0; slice <= slices; ++slice)
    bounds.push_back(kLength * slice / slices);
  return test::plan_of_stages(shape_of(family), {0, 2, 0}, bounds, kSequences);
}

// One microbatch through F, I and W of one stage: the largest of each.
OpWorkspace measure(const RunPlan& plan, Part part) {
  const auto watch = std::make_shared<Watch>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
  at::set_num_threads(1);
  Stage stage(plan, part);
  stage.begin_step(1);
  const at::Tensor tokens = at::arange(kSequences * kLength, at::kLong)
                                .remainder(plan.shape.vocab_size)
                                .view({kSequences, kLength});
  const Microbatch batch{tokens, tokens, {}, plan.slice_bounds()};
  const int slices = plan.schedule.num_slices;
  const auto boundary = [&] {
    return at::ones({plan.largest_share(0).tokens, plan.shape.dim},
                    tensor_kind(plan, at::kCPU).dtype);
  };
  OpWorkspace most;
  std::vector<at::Tensor> outputs(static_cast<std::size_t>(slices));
  for (int slice = 0; slice < slices; ++slice) {
    at::Tensor in = part == kEmbedding ? at::Tensor() : boundary();
    at::Tensor& out = outputs[static_cast<std::size_t>(slice)];
    most.f = std::max(most.f, watch->beyond([&] {
      out = stage.forward(0, slice, batch, in);
      in = at::Tensor();
    }));
    if (part != kHead) out = at::Tensor();
  }
  for (int slice = slices - 1; slice >= 0; --slice) {
    at::Tensor in =
                   part == kHead ? std::move(outputs[static_cast<std::size_t>(slice)]) : boundary(),
               out;
    most.i = std::max(most.i, watch->beyond([&] {
      out = stage.input_grad(0, slice, in);
      in = at::Tensor();
    }));
  }
  for (int slice = slices - 1; slice >= 0; --slice)
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
  using enum NumberType;
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert})
    for (const auto& [dtype, gradient_dtype] :
         {std::pair{float32, float32}, std::pair{bfloat16, float32}, std::pair{bfloat16, bfloat16}})
      for (const int slices : {1, 4}) {
        if (slices > 1 && family == ModelFamily::bert) continue;
        RunPlan plan = plan_of(family, slices);
        plan.config.training.dtype = dtype;
        plan.config.training.gradient_dtype = gradient_dtype;
        const auto check = [&](RecomputeLevel level, Part part, const auto& estimate) {
          plan.config.recompute.level = level;
          SCOPED_TRACE(fmt::format("{}, level {} in {}, gradients in {}, {} slices, part {}",
                                   family, level, plan.config.training.dtype,
                                   plan.config.training.gradient_dtype, slices,
                                   static_cast<int>(part)));
          const OpWorkspace estimated = estimate(plan, plan.largest_share(0).tokens);
          const OpWorkspace measured = measure(plan, part);
          expect_close(estimated.f, measured.f);
          expect_close(estimated.i, measured.i);
          expect_close(estimated.w, measured.w);
        };
        for (const RecomputeLevel level :
             {RecomputeLevel::none, RecomputeLevel::elementwise, RecomputeLevel::mlp,
              RecomputeLevel::all_but_attention, RecomputeLevel::full})
          check(level, kLayers, block_workspace);
        check(RecomputeLevel::none, kEmbedding, embedding_workspace);
        check(RecomputeLevel::none, kHead, head_workspace);
      }
}

}  // namespace
}  // namespace sluice
