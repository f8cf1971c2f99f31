// Several contents of the same tensors, of which one is in place: weights of other versions, or
// gradients of other windows. Whoever holds the tensors, or views of them, sees the content that is
// in place; contents change places without being copied.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <vector>

namespace sluice {

class Alternates {
 public:
  // The memory of `tensors`, each once; what is in it is the content `key`.
  Alternates(const std::vector<at::Tensor>& tensors, std::int64_t key);

  std::int64_t in_place() const { return in_place_; }
  bool has(std::int64_t key) const { return key == in_place_ || others_.contains(key); }
  std::size_t count() const { return others_.size() + 1; }
  std::vector<std::int64_t> keys() const;  // of all that are not in place
  std::int64_t bytes() const;              // of one content

  // Puts a content in place. REQUIRES: has(key).
  void use(std::int64_t key);
  // Copies what is in place; the copy is called `key`, or zeros are.
  void add_copy(std::int64_t key);
  void add_zeros(std::int64_t key);
  // Calls what is in place by another name. REQUIRES: none has it.
  void rename(std::int64_t key) { in_place_ = key; }
  // REQUIRES: it is not in place.
  void drop(std::int64_t key) { others_.erase(key); }

 private:
  using Content = std::vector<c10::DataPtr>;

  std::vector<at::Tensor> whole_;  // one view of all bytes of each memory
  std::int64_t in_place_;
  std::map<std::int64_t, Content> others_;
};

}  // namespace sluice
