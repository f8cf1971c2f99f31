// What attention promises beyond its gradients, which stage_test checks: memory linear in length.
#include "sluice/model/attention.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sluice/model/parameter.h"

namespace sluice {
namespace {

// The most that this thread held at once while a DebugInfoGuard has it in place.
class PeakAllocation final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* pointer, std::int64_t size, std::size_t, std::size_t,
                         c10::Device) override {
    if (size > 0) {
      sizes_[pointer] = size;
      held_ += size;
      peak_ = std::max(peak_, held_);
    } else if (const auto found = sizes_.find(pointer); found != sizes_.end()) {
      held_ -= found->second;
      sizes_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::map<void*, std::int64_t> sizes_;
  std::int64_t held_ = 0, peak_ = 0;
};

struct Setting {
  const char* name;
  std::int64_t kv_heads;
  int num_slices;
  bool packed, both_ways;
};

at::Tensor drawn(at::IntArrayRef sizes, const char* name) {
  at::Tensor tensor = at::empty(sizes);
  initialise_normal(tensor, 1, name, 1);
  return tensor;
}

// Of the last slice, forward and backward.
std::int64_t peak_bytes(const Setting& setting, std::int64_t length) {
  constexpr std::int64_t kHeads = 4, kHeadDim = 8;
  const std::int64_t part = length / setting.num_slices;
  SliceBounds bounds = {0};
  AttentionInput input;
  input.q = drawn({1, kHeads, part, kHeadDim}, "q");
  input.both_ways = setting.both_ways;
  std::vector<at::Tensor> d_keys, d_values;
  for (int c = 0; c < setting.num_slices; ++c) {
    bounds.push_back(bounds.back() + part);
    input.keys.push_back(drawn({1, setting.kv_heads, part, kHeadDim}, "k"));
    input.values.push_back(drawn({1, setting.kv_heads, part, kHeadDim}, "v"));
    d_keys.push_back(at::zeros_like(input.keys.back()));
    d_values.push_back(at::zeros_like(input.keys.back()));
  }
  Documents documents;
  if (setting.packed) documents.starts = {{0, length / 3, length - part / 2}};
  const auto peak = std::make_shared<PeakAllocation>();
  const c10::DebugInfoGuard observed(c10::DebugInfoKind::PROFILER_STATE, peak);
  const AttentionOutput output = attention(input, documents, bounds);
  attention_backward(at::ones_like(output.out), input, output, documents, bounds, d_keys, d_values);
  return peak->peak();
}

TEST(Attention, MemoryIsLinearInLength) {
  at::set_num_threads(1);
  for (const Setting& setting :
       {Setting{"decoder", 4, 1, false, false}, Setting{"shared keys", 2, 1, false, false},
        Setting{"slices", 4, 4, false, false}, Setting{"documents", 2, 2, true, false},
        Setting{"encoder", 4, 1, true, true}}) {
    const std::int64_t small = peak_bytes(setting, 1024), large = peak_bytes(setting, 4096);
    EXPECT_GT(small, 0);
    // Four times the length; the kernel's blocks grow a little too. Scores would be 16 times.
    EXPECT_LE(large, 6 * small) << setting.name;
  }
}

}  // namespace
}  // namespace sluice
