#include "sluice/runtime/allocator.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

namespace sluice {
namespace {

constexpr std::size_t kAlignment = 64;  // of tensors, as torch has it
constexpr std::size_t kLeastBytes = 8 * kAlignment;

// Stands before the tensor's bytes.
struct alignas(kAlignment) Header {
  std::size_t bytes;  // of the block without the header
};
static_assert(sizeof(Header) == kAlignment);

// Safe to use from several threads at once.
class KeptBlocks {
 public:
  Header* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<Header*>& kept = kept_[bytes];
    Header* block = nullptr;
    if (!kept.empty()) {
      block = kept.back();
      kept.pop_back();
      count_.kept_bytes -= signed_bytes(block);
    } else {
      block = fresh(bytes);
      if (!block) {
        release_all();
        block = fresh(bytes);
      }
      if (!block) return nullptr;
    }
    count_.used_bytes += signed_bytes(block);
    peak_bytes_ = std::max(peak_bytes_, count_.used_bytes);
    return block;
  }

  void give_back(Header* block) {
    const std::lock_guard lock(mutex_);
    count_.used_bytes -= signed_bytes(block);
    if (count_.kept_bytes + signed_bytes(block) > 2 * peak_bytes_) release_all();
    count_.kept_bytes += signed_bytes(block);
    kept_[block->bytes].push_back(block);
  }

  TensorMemory count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  static std::int64_t signed_bytes(const Header* block) {
    return static_cast<std::int64_t>(block->bytes);
  }

  static Header* fresh(std::size_t bytes) {
    void* block = std::aligned_alloc(kAlignment, bytes + sizeof(Header));
    return block ? new (block) Header{bytes} : nullptr;
  }

  void release_all() {
    for (auto& [bytes, blocks] : kept_) {
      for (Header* block : blocks)
        std::free(block);
      blocks.clear();
    }
    count_.kept_bytes = 0;
  }

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<Header*>> kept_;  // by size
  TensorMemory count_;
  std::int64_t peak_bytes_ = 0;  // of used_bytes
};

// Never destroyed: tensors may outlive everything else.
KeptBlocks& kept_blocks() {
  static KeptBlocks* const blocks = new KeptBlocks;
  return *blocks;
}

void free_tensor(void* data) {
  if (!data) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  kept_blocks().give_back(static_cast<Header*>(data) - 1);
}

class KeepingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      constexpr std::size_t kMost = std::size_t{1} << 62;
      Header* block = bytes <= kMost ? kept_blocks().take(block_bytes(bytes)) : nullptr;
      TORCH_CHECK(block, "can't allocate memory: ", bytes, " bytes for a tensor");
      data = block + 1;
      c10::profiledCPUMemoryReporter().New(data, bytes);
    }
    return {data, data, &free_tensor, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_tensor; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

std::size_t block_bytes(std::size_t bytes) {
  if (bytes <= kLeastBytes) return kLeastBytes;
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

void keep_freed_memory() {
  static KeepingAllocator allocator;
  c10::SetCPUAllocator(&allocator);
}

TensorMemory tensor_memory() { return kept_blocks().count(); }

}  // namespace sluice
