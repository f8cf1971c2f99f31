#include "sluice/runtime/files/safetensors.h"

#include <algorithm>
#include <array>

namespace sluice {
namespace {

SafetensorsHeader read_header(const InputFile& file) {
  const auto fail = [&](const std::string& what) {
    throw UserError(fmt::format("{} is not a safetensors file: {}", file.path(), what),
                    ExitCode::bad_data);
  };
  std::array<std::byte, 8> prefix{};
  if (file.size() < prefix.size()) fail(fmt::format("{} bytes: needs at least 10", file.size()));
  file.read_at(0, prefix);
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < 8; ++i)
    size |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  // Both limits before anything is allocated.
  if (size > kMaxHeaderBytes || size < 2)
    fail(fmt::format("a header of {} bytes: needs 2 to {}", size, kMaxHeaderBytes));
  if (size > file.size() - 8)
    fail(fmt::format("a header of {} bytes in a file of {}: truncated", size, file.size()));
  std::string json(static_cast<std::size_t>(size), '\0');
  file.read_at(8, std::as_writable_bytes(std::span(json)));
  return parse_safetensors_header(json, file.size() - 8 - size, file.path());
}

SafetensorsHeader in_reference_order(std::vector<TensorSpec> tensors,
                                     std::map<std::string, std::string> metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  for (TensorSpec& tensor : tensors) {
    const std::string problem = tensor_name_problem(tensor.name);
    SLUICE_CHECK(problem.empty(), "tensor name {} {}", tensor.name, problem);
    header.tensors.push_back({std::move(tensor), 0, 0});
  }
  return header;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, Symlinks symlinks)
    : file_(path, symlinks), header_(read_header(file_)) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i)
    by_name_[header_.tensors[i].name] = i;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, std::span<std::byte> into,
                           std::uint64_t first_byte) const {
  SLUICE_CHECK(first_byte <= tensor.bytes && into.size() <= tensor.bytes - first_byte,
               "tensor {} has {} bytes, and {} from {} on are wanted", tensor.name, tensor.bytes,
               into.size(), first_byte);
  file_.read_at(tensor.offset + first_byte, into);
}

SafetensorsWriter::SafetensorsWriter(FileSystem& files, const std::string& path,
                                     std::vector<TensorSpec> tensors,
                                     std::map<std::string, std::string> metadata)
    : header_(in_reference_order(std::move(tensors), std::move(metadata))), file_(files, path) {
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : header_.tensors)
    names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  SLUICE_CHECK(twice == names.end(), "tensor {} is written twice to {}", *twice, path);
  const std::string header = format_safetensors_header(header_);
  put(as_byte_span(header));
  end_ = header_.tensors.empty() ? written_
                                 : header_.tensors.back().offset + header_.tensors.back().bytes;
}

void SafetensorsWriter::put(std::span<const std::byte> bytes) {
  file_.write(bytes);
  hash_.update(bytes);
  written_ += bytes.size();
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  const auto end_of = [&](std::size_t i) {
    return header_.tensors[i].offset + header_.tensors[i].bytes;
  };
  while (next_ < header_.tensors.size() && end_of(next_) == written_)
    ++next_;
  const std::uint64_t left = next_ < header_.tensors.size() ? end_of(next_) - written_ : 0;
  SLUICE_CHECK(bytes.size() <= left, "{} bytes are written where {} are left of tensor {}",
               bytes.size(), left,
               next_ < header_.tensors.size() ? header_.tensors[next_].name : "(none)");
  put(bytes);
}

WrittenFile SafetensorsWriter::commit() {
  SLUICE_CHECK(written_ == end_, "a file of {} bytes is committed with {}", end_, written_);
  file_.commit();
  return {written_, hash_.hex()};
}

}  // namespace sluice
