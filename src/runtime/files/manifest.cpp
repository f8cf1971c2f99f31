#include "sluice/runtime/files/manifest.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sluice/base/text.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kFormat = 4;
constexpr std::int64_t kOldestFormat = 3;  // its meshes do not say their order, which is:
constexpr const char* kOldestOrder = "data,pipeline,tensor";
constexpr int kMaxDepth = 64;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

// The library silently keeps the last of two equal keys and follows any depth.
Json parse_strictly(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth && problem.empty())
      problem = fmt::format("is nested deeper than {}", kMaxDepth);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second && problem.empty())
      problem = fmt::format("has the key {} twice", json_quote(parsed.get<std::string>()));
    return problem.empty();
  };
  try {
    Json value = Json::parse(text, watch);
    if (problem.empty()) return value;
  } catch (const Json::exception& error) {
    problem = fmt::format("is not valid JSON: {}", error.what());
  }
  fail(path, problem);
}

// Members of a JSON object, with the kind checked.
class Fields {
 public:
  Fields(const Json& object, std::string where, const std::string& path)
      : object_(object), where_(std::move(where)), path_(path) {
    if (!object.is_object()) fail(path, where_ + " needs to be an object");
  }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(path_, fmt::format("{} has no {}", where_, key));
    return *found;
  }
  Fields object(const char* key) const { return {at(key), where_ + "." + key, path_}; }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) wrong(key, "a string");
    return value.get<std::string>();
  }
  std::int64_t count(const char* key) const { return whole(at(key), key); }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) wrong(key, "a list");
    return value;
  }
  std::vector<std::int64_t> counts(const char* key) const {
    std::vector<std::int64_t> out;
    for (const Json& value : list(key))
      out.push_back(whole(value, key));
    return out;
  }
  Range range(const char* key) const {
    const std::vector<std::int64_t> ends = counts(key);
    if (ends.size() != 2) wrong(key, "[begin, end]");
    return {ends[0], ends[1]};
  }
  std::string hash(const char* key) const {
    std::string value = text(key);
    if (value.size() != 64 || value.find_first_not_of("0123456789abcdef") != value.npos)
      wrong(key, "64 hexadecimal digits");
    return value;
  }
  [[noreturn]] void wrong(const char* key, const std::string& needs) const {
    std::string have = at(key).dump(-1, ' ', true, Json::error_handler_t::replace);
    if (have.size() > 60) have = have.substr(0, 60) + "...";
    fail(path_, fmt::format("{}.{} is {}: needs {}", where_, key, have, needs));
  }

 private:
  std::int64_t whole(const Json& value, const char* key) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX)
      wrong(key, "whole numbers from 0 to 2^63-1");
    return value.get<std::int64_t>();
  }

  const Json& object_;
  std::string where_;
  const std::string& path_;
};

// A sealed text is an object whose last line is its own hash:
//   { ..., \n "sha256": "<of everything before this line>"\n}\n
constexpr std::string_view kSealBegin = " \"sha256\": \"", kSealEnd = "\"\n}\n";
constexpr std::size_t kSealBytes = kSealBegin.size() + 64 + kSealEnd.size();

std::string seal(std::string open_object) {
  const std::string hash = sha256_hex(open_object);
  return open_object.append(kSealBegin).append(hash).append(kSealEnd);
}

Json open_sealed(std::string_view text, const std::string& path) {
  if (text.size() < kSealBytes) fail(path, fmt::format("{} bytes: truncated", text.size()));
  const std::string_view body = text.substr(0, text.size() - kSealBytes);
  const std::string_view end = text.substr(body.size());
  if (!end.starts_with(kSealBegin) || !end.ends_with(kSealEnd))
    fail(path, "does not end with its hash: truncated, extended or edited");
  const std::string_view said = end.substr(kSealBegin.size(), 64);
  if (const std::string is = sha256_hex(body); is != said)
    fail(path, fmt::format("has the hash {}, and says {}: corrupt or edited", is, said));
  return parse_strictly(text, path);
}

std::string list_lines(const std::vector<std::string>& lines) {
  return lines.empty() ? "[]" : fmt::format("[\n  {}\n ]", fmt::join(lines, ",\n  "));
}

std::string piece_json(const TensorPiece& piece, const std::string& file) {
  const auto& [rows, columns] = piece.box;
  return fmt::format(
      R"({{"name": {}, "dtype": "{}", "shape": [{}], "rows": [{}, {}], {}"file": "{}"}})",
      json_quote(piece.tensor.name), dtype_name(piece.tensor.dtype),
      fmt::join(piece.tensor.shape, ", "), rows.begin, rows.end,
      piece.tensor.shape.size() < 2
          ? ""
          : fmt::format(R"("columns": [{}, {}], )", columns.begin, columns.end),
      file);
}

// Members "files" and "tensors".
std::string shards_json(std::span<const ShardRecord> shards) {
  std::vector<std::string> files, tensors;
  for (const ShardRecord& shard : shards) {
    files.push_back(fmt::format(R"({{"name": "{}", "bytes": {}, "sha256": "{}"}})", shard.file,
                                shard.bytes, shard.sha256));
    for (const TensorPiece& piece : shard.pieces)
      tensors.push_back(piece_json(piece, shard.file));
  }
  return fmt::format(" \"files\": {},\n \"tensors\": {},\n", list_lines(files),
                     list_lines(tensors));
}

TensorPiece read_piece(const Fields& fields) {
  TensorPiece piece;
  piece.tensor.name = fields.text("name");
  if (const std::string problem = tensor_name_problem(piece.tensor.name); !problem.empty())
    fields.wrong("name", fmt::format("another name: it {}", problem));
  const std::optional<Dtype> dtype = parse_dtype(fields.text("dtype"));
  if (!dtype) fields.wrong("dtype", "a dtype of safetensors");
  piece.tensor.dtype = *dtype;
  piece.tensor.shape = fields.counts("shape");
  if (piece.tensor.shape.size() > kMaxTensorRank ||
      !tensor_bytes(piece.tensor.dtype, piece.tensor.shape))
    fields.wrong("shape", "at most 64 dimensions and less than 2^64 bits in all");
  piece.box = {fields.range("rows"), {0, 1}};
  if (piece.tensor.shape.size() > 1) piece.box.columns = fields.range("columns");
  if (const std::string problem = piece_problem(piece); !problem.empty())
    fields.wrong("rows", fmt::format("other rows or columns: {}", problem));
  return piece;
}

std::vector<ShardRecord> read_shards(const Fields& root, const std::string& path) {
  std::vector<ShardRecord> shards;
  std::map<std::string, std::size_t> by_file;
  for (const Json& entry : root.list("files")) {
    const Fields fields(entry, fmt::format("files[{}]", shards.size()), path);
    ShardRecord shard;
    shard.file = fields.text("name");
    shard.bytes = static_cast<std::uint64_t>(fields.count("bytes"));
    shard.sha256 = fields.hash("sha256");
    if (!by_file.emplace(shard.file, shards.size()).second) fields.wrong("name", "each file once");
    shards.push_back(std::move(shard));
  }
  std::size_t index = 0;
  for (const Json& entry : root.list("tensors")) {
    const Fields fields(entry, fmt::format("tensors[{}]", index++), path);
    const auto shard = by_file.find(fields.text("file"));
    if (shard == by_file.end()) fields.wrong("file", "one of files");
    shards[shard->second].pieces.push_back(read_piece(fields));
  }
  return shards;
}

void check_format(const Fields& root, const std::string& kind, const std::string& path) {
  if (root.text("schema") != kind) root.wrong("schema", json_quote(kind));
  const std::int64_t format = root.count("format");
  // Not damage: the seal is whole.
  if (format < kOldestFormat || format > kFormat)
    throw user_error(
        "{}: has format {}, and this version reads {} to {}: use the version that wrote it", path,
        format, kOldestFormat, kFormat);
}

std::string head(const std::string& kind, std::int64_t step) {
  return fmt::format("{{\n \"schema\": \"{}\",\n \"format\": {},\n \"step\": {},\n", kind, kFormat,
                     step);
}

}  // namespace

std::string shard_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string write_manifest(const Manifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  const Json state = Json::parse(info.state, nullptr, false);
  SLUICE_CHECK(state.is_object(), "the state of a checkpoint is no JSON object: {}", info.state);
  const std::string text =
      head("sluice.checkpoint", info.step) +
      fmt::format(
          " \"mesh\": {{\"data\": {}, \"pipeline\": {}, \"tensor\": {}, \"sequence\": {}, "
          "\"order\": {}}},\n",
          info.mesh.data, info.mesh.pipeline, info.mesh.tensor, info.mesh.sequence,
          json_quote(info.mesh.order)) +
      fmt::format(" \"schedule\": {},\n \"config\": {},\n \"state\": {},\n",
                  json_quote(info.schedule), json_quote(info.config), state.dump()) +
      shards_json(manifest.shards);
  return seal(text);
}

Manifest read_manifest(std::string_view text, const std::string& path) {
  const Json json = open_sealed(text, path);
  const Fields root(json, "manifest", path);
  check_format(root, "sluice.checkpoint", path);
  Manifest manifest;
  CheckpointInfo& info = manifest.info;
  info.step = root.count("step");
  const Fields mesh = root.object("mesh");
  info.mesh = {mesh.count("data"), mesh.count("pipeline"), mesh.count("tensor"),
               mesh.count("sequence"),
               root.count("format") == kOldestFormat ? kOldestOrder : mesh.text("order")};
  if (const std::string latest = CheckpointMesh().order;
      info.mesh.order != latest && info.mesh.order != kOldestOrder)
    throw user_error(
        "{}: mesh.order is {}, and this version reads {} and {}: use the version that wrote it",
        path, json_quote(info.mesh.order), json_quote(latest), json_quote(kOldestOrder));
  info.schedule = root.text("schedule");
  info.config = root.text("config");
  if (!root.at("state").is_object()) root.wrong("state", "an object");
  info.state = root.at("state").dump();
  manifest.shards = read_shards(root, path);
  for (std::size_t rank = 0; rank < manifest.shards.size(); ++rank)
    if (const std::string name = shard_file_name(static_cast<int>(rank));
        manifest.shards[rank].file != name)
      fail(path, fmt::format("files[{}] is {}: needs {}", rank,
                             json_quote(manifest.shards[rank].file), name));
  if (const std::string problem = tiling_problem(manifest.shards); !problem.empty())
    fail(path, problem);
  return manifest;
}

std::string write_shard_record(const ShardRecord& shard, std::int64_t step) {
  return seal(head("sluice.shard", step) + shards_json({&shard, 1}));
}

ShardRecord read_shard_record(std::string_view text, std::int64_t step, const std::string& path) {
  const Json json = open_sealed(text, path);
  const Fields root(json, "record", path);
  check_format(root, "sluice.shard", path);
  if (const std::int64_t is = root.count("step"); is != step)
    fail(path, fmt::format("is of step {}: needs step {}", is, step));
  std::vector<ShardRecord> shards = read_shards(root, path);
  if (shards.size() != 1) fail(path, fmt::format("names {} shards: needs 1", shards.size()));
  return std::move(shards.front());
}

}  // namespace sluice
