#include "sluice/model/alternates.h"

#include <set>

namespace sluice {
namespace {

// The memory of a tensor that nobody else holds.
c10::DataPtr take_memory(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->set_data_ptr(
      c10::DataPtr(nullptr, tensor.device()));
}

}  // namespace

Alternates::Alternates(const std::vector<at::Tensor>& tensors, std::int64_t key) : in_place_(key) {
  std::set<const void*> seen;
  for (const at::Tensor& tensor : tensors) {
    const at::Storage& storage = tensor.storage();
    if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
    whole_.push_back(at::empty({0}, tensor.options().dtype(at::kByte))
                         .set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1}));
  }
}

std::int64_t Alternates::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& memory : whole_)
    bytes += memory.numel();
  return bytes;
}

std::vector<std::int64_t> Alternates::keys() const {
  std::vector<std::int64_t> keys;
  for (const auto& [key, content] : others_)
    keys.push_back(key);
  return keys;
}

void Alternates::use(std::int64_t key) {
  if (key == in_place_) return;
  auto node = others_.extract(key);
  Content& content = node.mapped();
  for (std::size_t n = 0; n < whole_.size(); ++n)
    content[n] = whole_[n].storage().unsafeGetStorageImpl()->set_data_ptr(std::move(content[n]));
  node.key() = in_place_;
  others_.insert(std::move(node));
  in_place_ = key;
}

void Alternates::add_copy(std::int64_t key) {
  Content& content = others_[key];
  for (const at::Tensor& memory : whole_)
    content.push_back(take_memory(memory.clone()));
}

void Alternates::add_zeros(std::int64_t key) {
  Content& content = others_[key];
  for (const at::Tensor& memory : whole_)
    content.push_back(take_memory(at::zeros_like(memory)));
}

}  // namespace sluice
