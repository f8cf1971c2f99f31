// The header of a safetensors file: reading, which trusts nothing, and writing.
#include <algorithm>
#include <array>
#include <set>

#include "sluice/base/text.h"
#include "sluice/runtime/files/json_scanner.h"
#include "sluice/runtime/files/safetensors.h"

namespace sluice {
namespace {

struct DtypeRow {
  std::string_view name;
  int bits;
};
// Indexed by Dtype.
constexpr std::array<DtypeRow, 22> kDtypes = {
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

// One `"name": {...}`; offset is still relative to the buffer.
TensorInfo parse_entry(JsonScanner& scanner, const std::string& name) {
  if (const std::string problem = tensor_name_problem(name); !problem.empty())
    scanner.fail(fmt::format("tensor name {} {}", shown_text(name), problem));
  const std::string where = fmt::format("tensor {}", shown_text(name));
  TensorInfo tensor;
  tensor.name = name;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  const auto once = [&](bool& has, std::string_view key) {
    if (has) scanner.fail(fmt::format("{} has {} twice", where, key));
    has = true;
  };
  scanner.object(where, [&](const std::string& key) {
    if (key == "dtype") {
      once(has_dtype, key);
      const std::string text = scanner.string(where);
      const std::optional<Dtype> dtype = parse_dtype(text);
      if (!dtype) scanner.fail(fmt::format("{} has the unknown dtype {}", where, shown_text(text)));
      tensor.dtype = *dtype;
    } else if (key == "shape") {
      once(has_shape, key);
      scanner.array(where, [&] {
        const std::uint64_t size = scanner.integer(where);
        if (size > INT64_MAX)
          scanner.fail(fmt::format("{} has a dimension of {}: needs less than 2^63", where, size));
        if (tensor.shape.size() == kMaxTensorRank)
          scanner.fail(fmt::format("{} has more than {} dimensions", where, kMaxTensorRank));
        tensor.shape.push_back(static_cast<std::int64_t>(size));
      });
    } else if (key == "data_offsets") {
      once(has_offsets, key);
      std::size_t count = 0;
      std::array<std::uint64_t, 2> range{};
      scanner.array(where, [&] {
        const std::uint64_t value = scanner.integer(where);
        if (count < 2) range[count] = value;
        ++count;
      });
      if (count != 2) scanner.fail(fmt::format("{} has {} data_offsets: needs 2", where, count));
      if (range[0] > range[1])
        scanner.fail(
            fmt::format("{} begins at {} and ends before, at {}", where, range[0], range[1]));
      tensor.offset = range[0];
      tensor.bytes = range[1] - range[0];
    } else {
      scanner.fail(fmt::format("{} has the unknown key {}: known are dtype, shape, data_offsets",
                               where, shown_text(key)));
    }
  });
  for (const auto& [has, key] : {std::pair{has_dtype, "dtype"}, std::pair{has_shape, "shape"},
                                 std::pair{has_offsets, "data_offsets"}})
    if (!has) scanner.fail(fmt::format("{} has no {}", where, key));
  const std::optional<std::uint64_t> needed = tensor_bytes(tensor.dtype, tensor.shape);
  if (!needed)
    scanner.fail(fmt::format("{} of shape {} and dtype {} is no whole number of bytes below 2^64",
                             where, shape_text(tensor.shape), dtype_name(tensor.dtype)));
  if (*needed != tensor.bytes)
    scanner.fail(fmt::format(
        "{} of shape {} and dtype {} needs {} bytes, and its data_offsets hold {}", where,
        shape_text(tensor.shape), dtype_name(tensor.dtype), *needed, tensor.bytes));
  return tensor;
}

// Sorted by offset, each tensor must begin where the one before ends, and the last where the file
// does.
void check_layout(const std::vector<TensorInfo>& tensors, std::uint64_t buffer_bytes,
                  const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
  };
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    if (tensor.offset != end)
      fail(fmt::format("tensor {} begins at {}, and {} ends at {}: {}", shown_text(tensor.name),
                       tensor.offset, i == 0 ? "the header" : shown_text(tensors[i - 1].name), end,
                       tensor.offset > end ? "a hole" : "they overlap"));
    end += tensor.bytes;
    if (end > buffer_bytes)
      fail(
          fmt::format("tensor {} ends at {}, and the file holds {} bytes after its header: "
                      "truncated",
                      shown_text(tensor.name), end, buffer_bytes));
  }
  if (end != buffer_bytes)
    fail(fmt::format("its tensors end at {}, and it holds {} bytes after its header: extended", end,
                     buffer_bytes));
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

int dtype_bits(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bits; }

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  return std::nullopt;
}

std::optional<std::uint64_t> tensor_bytes(Dtype dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bits = 1;
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits))
      return std::nullopt;
  if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dtype_bits(dtype)), &bits) ||
      bits % 8 != 0)
    return std::nullopt;
  return bits / 8;
}

std::string tensor_name_problem(std::string_view name) {
  constexpr std::size_t kMaxName = 1024;
  if (name.empty()) return "is empty";
  if (name == "__metadata__") return "is taken by the format";
  if (name.size() > kMaxName)
    return fmt::format("has {} bytes: needs at most {}", name.size(), kMaxName);
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "has a control character";
  if (name.front() == '/') return "begins with '/'";
  for (const std::string_view part : split(name, '/'))
    if (part == "..") return "leads out of its folder";
  return "";
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t buffer_bytes,
                                           const std::string& path) {
  JsonScanner scanner(json, path);
  if (json.empty() || json.front() != '{') scanner.fail("needs to begin with '{'");
  SafetensorsHeader header;
  bool has_metadata = false;
  scanner.object("the header", [&](const std::string& name) {
    if (name != "__metadata__") {
      header.tensors.push_back(parse_entry(scanner, name));
      return;
    }
    if (has_metadata) scanner.fail("__metadata__ is there twice");
    has_metadata = true;
    scanner.object("__metadata__", [&](const std::string& key) {
      if (!header.metadata.emplace(key, scanner.string("__metadata__")).second)
        scanner.fail(fmt::format("__metadata__ has {} twice", shown_text(key)));
    });
  });
  scanner.expect_end();

  std::set<std::string_view> names;
  for (const TensorInfo& tensor : header.tensors)
    if (!names.insert(tensor.name).second)
      throw UserError(fmt::format("{}: tensor {} is there twice", path, shown_text(tensor.name)),
                      ExitCode::bad_data);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
            });
  check_layout(header.tensors, buffer_bytes, path);
  for (TensorInfo& tensor : header.tensors)
    tensor.offset += 8 + json.size();
  return header;
}

std::string format_safetensors_header(SafetensorsHeader& header) {
  std::vector<std::string> entries;
  if (!header.metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : header.metadata)
      pairs.push_back(json_quote(key) + ":" + json_quote(value));
    entries.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::uint64_t end = 0;
  for (TensorInfo& tensor : header.tensors) {
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    SLUICE_CHECK(bytes.has_value(), "tensor {} has shape {} and dtype {}", tensor.name,
                 shape_text(tensor.shape), dtype_name(tensor.dtype));
    tensor.offset = end;
    tensor.bytes = *bytes;
    end += *bytes;
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                                  json_quote(tensor.name), dtype_name(tensor.dtype),
                                  shape_text(tensor.shape), tensor.offset, end));
  }
  std::string json = fmt::format("{{{}}}", fmt::join(entries, ","));
  json.resize((json.size() + 7) / 8 * 8, ' ');
  SLUICE_CHECK(json.size() <= kMaxHeaderBytes, "header of {} bytes: the format allows {}",
               json.size(), kMaxHeaderBytes);
  for (TensorInfo& tensor : header.tensors)
    tensor.offset += 8 + json.size();
  std::string size(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    size[i] = static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return size + json;
}

}  // namespace sluice
