#include "runtime/files/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "runtime/files/checkpoint_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

// What the shard says of itself, which tells a foreign one from a damaged one; "" when it is ours.
std::string origin_problem(const SafetensorsFile& file, std::int64_t step, std::size_t rank) {
  const auto said = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string("(none)") : found->second;
  };
  if (said("step") == std::to_string(step) && said("rank") == std::to_string(rank)) return "";
  return fmt::format("is the shard of step {}, rank {}: needs step {}, rank {}; a foreign file",
                     said("step"), said("rank"), step, rank);
}

// Why the bytes of a shard are not those saved.
std::string mismatch_problem(const std::string& path, std::int64_t step, std::size_t rank) {
  try {
    return origin_problem(SafetensorsFile(path, Symlinks::refuse), step, rank);
  } catch (const UserError&) {
    return "";  // its header is damaged too
  }
}

// The header holds exactly the pieces that the manifest puts there.
void check_contents(const SafetensorsFile& file, const ShardRecord& shard) {
  for (const TensorPiece& piece : shard.pieces) {
    const TensorSpec stored = stored_form(piece);
    const TensorInfo* have = file.find(stored.name);
    if (have == nullptr)
      fail(file.path(),
           fmt::format("has no tensor {}, and the manifest says so", json_quote(stored.name)));
    if (have->dtype != stored.dtype || have->shape != stored.shape)
      fail(file.path(), fmt::format("tensor {} is {} [{}], and the manifest says {} [{}]",
                                    json_quote(stored.name), dtype_name(have->dtype),
                                    fmt::join(have->shape, ","), dtype_name(stored.dtype),
                                    fmt::join(stored.shape, ",")));
  }
  if (file.tensors().size() != shard.pieces.size())
    fail(file.path(), fmt::format("has {} tensors, and the manifest says {}", file.tensors().size(),
                                  shard.pieces.size()));
}

Manifest open_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  Manifest manifest =
      read_manifest(InputFile(path, Symlinks::refuse).read_text(kMaxManifestBytes), path);
  const std::string name = std::filesystem::path(folder).filename().string();
  if (const auto step = parse_step_folder(name); step && *step != manifest.info.step)
    fail(path, fmt::format("is of step {}: a foreign manifest", manifest.info.step));
  return manifest;
}

void check_sizes(const std::string& folder, const Manifest& manifest) {
  std::set<std::string> known;
  for (const ShardRecord& shard : manifest.shards) {
    known.insert(shard.file);
    const InputFile file(folder + "/" + shard.file, Symlinks::refuse);
    if (file.size() != shard.bytes)
      fail(file.path(),
           fmt::format("has {} bytes, and the manifest says {}: {}", file.size(), shard.bytes,
                       file.size() < shard.bytes ? "truncated" : "extended"));
  }
  // Without exceptions: another process may be removing the folder.
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(".safetensors") && !known.contains(name))
      fail(at->path().string(), "is not in the manifest: a foreign file");
  }
  if (error) fail(folder, fmt::format("cannot be listed: {}", error.message()));
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder)
    : folder_(folder), manifest_(open_manifest(folder)), files_(manifest_.shards.size()) {
  check_sizes(folder_, manifest_);
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i)
    for (const TensorPiece& piece : manifest_.shards[i].pieces)
      places_[piece.tensor.name].push_back({i, &piece});
  for (auto& [name, places] : places_) {
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return a.piece->row_begin < b.piece->row_begin;
    });
    tensors_.push_back(places.front().piece->tensor);
  }
}

const TensorSpec* Checkpoint::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorSpec& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

void Checkpoint::verify() const {
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
    const ShardRecord& shard = manifest_.shards[i];
    const std::string path = folder_ + "/" + shard.file;
    const InputFile file(path, Symlinks::refuse);
    if (const std::string is = sha256_hex(file); is != shard.sha256) {
      if (const std::string problem = mismatch_problem(path, manifest_.info.step, i);
          !problem.empty())
        fail(path, problem);
      fail(path,
           fmt::format("has the hash {}, and the manifest says {}: corrupt, or of another run", is,
                       shard.sha256));
    }
    open_shard(i);
  }
}

std::unique_ptr<SafetensorsFile> Checkpoint::open_shard(std::size_t shard) const {
  auto file = std::make_unique<SafetensorsFile>(folder_ + "/" + manifest_.shards[shard].file,
                                                Symlinks::refuse);
  if (const std::string problem = origin_problem(*file, manifest_.info.step, shard);
      !problem.empty())
    fail(file->path(), problem);
  check_contents(*file, manifest_.shards[shard]);
  return file;
}

const SafetensorsFile& Checkpoint::shard_file(std::size_t shard) const {
  const std::lock_guard lock(mutex_);
  if (!files_[shard]) files_[shard] = open_shard(shard);
  return *files_[shard];
}

void Checkpoint::read_rows(const TensorSpec& tensor, std::int64_t row_begin, std::int64_t row_end,
                           std::span<std::byte> into) const {
  const auto found = places_.find(tensor.name);
  SLUICE_CHECK(found != places_.end() && found->second.front().piece->tensor == tensor,
               "tensor {} is not in {}", tensor.name, folder_);
  SLUICE_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= num_rows(tensor),
               "rows [{}, {}) of tensor {} with {}", row_begin, row_end, tensor.name,
               num_rows(tensor));
  const auto bytes_of_rows = [&](std::int64_t begin, std::int64_t end) {
    const auto bytes = tensor_bytes(tensor.dtype, stored_form({tensor, begin, end}).shape);
    SLUICE_CHECK(bytes.has_value(), "rows [{}, {}) of tensor {} end inside a byte", begin, end,
                 tensor.name);
    return static_cast<std::size_t>(*bytes);
  };
  SLUICE_CHECK(into.size() == bytes_of_rows(row_begin, row_end),
               "rows [{}, {}) of tensor {} need {} bytes, not {}", row_begin, row_end, tensor.name,
               bytes_of_rows(row_begin, row_end), into.size());
  for (const Place& place : found->second) {
    const std::int64_t begin = std::max(row_begin, place.piece->row_begin);
    const std::int64_t end = std::min(row_end, place.piece->row_end);
    if (begin >= end) continue;
    const SafetensorsFile& file = shard_file(place.shard);
    file.read(*file.find(tensor.name),
              into.subspan(begin == row_begin ? 0 : bytes_of_rows(row_begin, begin),
                           bytes_of_rows(begin, end)),
              begin == place.piece->row_begin ? 0 : bytes_of_rows(place.piece->row_begin, begin));
  }
}

}  // namespace sluice
