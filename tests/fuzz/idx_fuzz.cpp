// Any bytes at all: the reader of .idx files refuses them with a UserError, or gives an index whose
// figures belong together and fit the .bin file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "sluice/data/indexed.h"

namespace sluice {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void try_index(std::string_view bytes, std::int64_t bin_bytes) {
  TokenIndex index;
  try {
    index = read_token_index(MemoryBytes(bytes), bin_bytes);
  } catch (const UserError& error) {
    require(error.code() == ExitCode::bad_data, "not called bad data");
    return;
  }
  const std::vector<std::int64_t>& starts = index.document_starts;
  require(index.num_tokens >= 0 && index.num_tokens <= bin_bytes / item_bytes(index.type),
          "more tokens than the .bin file holds");
  require(!starts.empty() && starts.front() == 0 && starts.back() == index.num_tokens,
          "documents do not cover the tokens");
  require(std::is_sorted(starts.begin(), starts.end()), "documents are out of order");
  require(
      34 + 12 * static_cast<std::size_t>(index.num_sequences) + 8 * starts.size() <= bytes.size(),
      "more entries than the file holds");
}

}  // namespace
}  // namespace sluice

// The first byte stands for the size of the .bin file: small ones, and all there could be.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::int64_t bin_bytes = data[0] == 255 ? INT64_MAX : data[0];
  sluice::try_index({reinterpret_cast<const char*>(data) + 1, size - 1}, bin_bytes);
  return 0;
}
