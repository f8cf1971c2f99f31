// Any bytes at all as a safetensors file's header and buffer size: the reader refuses them with a
// UserError, or reads tensors that tile the buffer exactly and that are written and read back the
// same.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sluice/base/error.h"
#include "sluice/runtime/files/safetensors.h"

namespace sluice {
namespace {

void require(bool holds, const char* what, std::string_view json) {
  if (holds) return;
  std::fprintf(stderr, "%s:\n%.*s\n", what, static_cast<int>(json.size()), json.data());
  std::abort();
}

void try_header(std::string_view json, std::uint64_t buffer_bytes) {
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(json, buffer_bytes, "input");
  } catch (const UserError& error) {
    require(error.code() == ExitCode::bad_data, "refused with another exit code", json);
    return;
  }
  std::uint64_t end = 8 + json.size();
  for (const TensorInfo& tensor : header.tensors) {
    require(tensor.offset == end, "a hole or an overlap", json);
    require(tensor_bytes(tensor.dtype, tensor.shape) == tensor.bytes, "shape and bytes differ",
            json);
    require(tensor_name_problem(tensor.name).empty(), "a bad name", json);
    end += tensor.bytes;
  }
  require(end == 8 + json.size() + buffer_bytes, "the tensors do not fill the file", json);

  SafetensorsHeader written = header;
  const std::string text = format_safetensors_header(written);
  const SafetensorsHeader again =
      parse_safetensors_header(std::string_view(text).substr(8), buffer_bytes, "written");
  require(again.metadata == header.metadata, "metadata not read back the same", json);
  require(again.tensors.size() == header.tensors.size(), "tensors are lost", json);
  for (const TensorInfo& tensor : header.tensors) {
    bool found = false;
    for (const TensorInfo& other : again.tensors)
      found = found || other == static_cast<const TensorSpec&>(tensor);
    require(found, "a tensor is not read back the same", json);
  }
}

}  // namespace
}  // namespace sluice

// The first two bytes are the size of the buffer, the rest is the header.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  sluice::try_header(json, static_cast<std::uint64_t>(data[0] | data[1] << 8));
  return 0;
}
