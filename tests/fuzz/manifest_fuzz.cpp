// Any text at all, sealed with its hash, as the manifest of a checkpoint: the reader refuses it
// with a UserError, or reads one whose boxes tile its tensors and that is written and read back the
// same.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sluice/base/error.h"
#include "sluice/runtime/files/manifest.h"
#include "sluice/runtime/files/sha256.h"

namespace sluice {
namespace {

void require(bool holds, const char* what, const std::string& text) {
  if (holds) return;
  std::fprintf(stderr, "%s:\n%s\n", what, text.c_str());
  std::abort();
}

void try_text(const std::string& body) {
  const std::string text = body + " \"sha256\": \"" + sha256_hex(body) + "\"\n}\n";
  Manifest manifest;
  try {
    manifest = read_manifest(text, "input");
  } catch (const UserError& error) {
    // usage: of another version's format, which is no damage.
    require(error.code() == ExitCode::bad_data || error.code() == ExitCode::usage,
            "refused with another exit code", text);
    return;
  }
  require(tiling_problem(manifest.shards).empty(), "boxes do not tile the tensors", text);
  require(read_manifest(write_manifest(manifest), "written") == manifest, "not read back the same",
          text);
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::try_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
