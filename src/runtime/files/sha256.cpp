#include "sluice/runtime/files/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

namespace sluice {

struct Sha256::State {
  State() : context(EVP_MD_CTX_new()) {
    SLUICE_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1,
                 "no SHA-256 in the OpenSSL library");
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  EVP_MD_CTX* context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  SLUICE_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1,
               "hashing {} bytes failed", bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  SLUICE_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1,
               "hash ended twice");
  std::string text;
  for (const unsigned char byte : digest)
    text += fmt::format("{:02x}", byte);
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(as_byte_span(text));
  return hash.hex();
}

std::string sha256_hex(const InputFile& file) {
  Sha256 hash;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(file.size(), 4 << 20));
  for (std::uint64_t at = 0; at < file.size();) {
    const auto piece =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), file.size() - at));
    file.read_at(at, piece);
    hash.update(piece);
    at += piece.size();
  }
  return hash.hex();
}

}  // namespace sluice
