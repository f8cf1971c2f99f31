// SHA-256, a piece at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/runtime/files/file_system.h"

namespace sluice {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  std::string hex();  // 64 lower-case digits; ends the hash, so call it once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view text);

// Of the whole file as it is now, with a buffer of a few megabytes.
std::string sha256_hex(const InputFile& file);

}  // namespace sluice
