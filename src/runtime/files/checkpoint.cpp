#include "sluice/runtime/files/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "sluice/base/text.h"
#include "sluice/runtime/files/step_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UserError(fmt::format("{}: {}", path, what), ExitCode::bad_data);
}

// Names the step and rank of a shard that belongs elsewhere, so that it is not taken for a damaged
// one; "" when it belongs here.
std::string origin_problem(const SafetensorsFile& file, std::int64_t step, std::size_t rank) {
  const auto said = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string("(none)") : found->second;
  };
  if (said("step") == std::to_string(step) && said("rank") == std::to_string(rank)) return "";
  return fmt::format("is the shard of step {}, rank {}, in place of that of step {}, rank {}",
                     said("step"), said("rank"), step, rank);
}

// Why the bytes of a shard are not the ones that were saved.
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
           fmt::format("has no tensor {}, which the manifest lists here", json_quote(stored.name)));
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
    fail(path, fmt::format("is the manifest of step {}, and its folder is that of step {}: it "
                           "belongs to another checkpoint",
                           manifest.info.step, *step));
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
      fail(at->path().string(), "is not in the manifest: it belongs to another checkpoint");
  }
  if (error) throw read_error("list", folder, error.value());
}

// Which part of a stored box goes to which place of a wanted one.
struct Copy {
  Box stored;
  Box wanted;
  Box part;  // of both
};

constexpr std::uint64_t kScratchBytes = 4 << 20;

void copy_part(const SafetensorsFile& file, const TensorInfo& tensor, const Copy& copy,
               std::span<std::byte> into, std::vector<std::byte>& scratch) {
  const auto& [stored, wanted, part] = copy;
  const auto count = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  if (part.columns == stored.columns && part.columns == wanted.columns) {
    // Whole rows on both sides lie together; a single one of them may end inside a byte.
    const auto bytes_of_rows = [&](std::int64_t rows) {
      if (rows == 0) return std::size_t{0};
      std::vector<std::int64_t> shape = tensor.shape;
      if (!shape.empty()) shape[0] = rows;
      const auto bytes = tensor_bytes(tensor.dtype, shape);
      SLUICE_CHECK(bytes.has_value(), "{} rows of tensor {} end inside a byte", rows, tensor.name);
      return static_cast<std::size_t>(*bytes);
    };
    file.read(tensor,
              into.subspan(bytes_of_rows(part.rows.begin - wanted.rows.begin),
                           bytes_of_rows(part.rows.size())),
              bytes_of_rows(part.rows.begin - stored.rows.begin));
    return;
  }
  const std::size_t stored_row = tensor.bytes / count(stored.rows.size());
  const std::size_t wanted_row = into.size() / count(wanted.rows.size());
  const std::size_t column = stored_row / count(stored.columns.size());
  const std::size_t from = column * count(part.columns.begin - stored.columns.begin);
  const std::size_t to = column * count(part.columns.begin - wanted.columns.begin);
  const std::size_t bytes = column * count(part.columns.size());
  const auto step = static_cast<std::int64_t>(
      std::max<std::uint64_t>(1, kScratchBytes / std::max<std::size_t>(stored_row, 1)));
  for (std::int64_t row = part.rows.begin; row < part.rows.end; row += step) {
    const std::size_t rows = count(std::min(step, part.rows.end - row));
    scratch.resize(stored_row * rows);
    file.read(tensor, scratch, stored_row * count(row - stored.rows.begin));
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(scratch.data() + r * stored_row + from, bytes,
                  into.data() + (count(row - wanted.rows.begin) + r) * wanted_row + to);
  }
}

}  // namespace

TensorRole role_of(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return TensorRole::weight;
  const std::string_view mark = name.substr(slash);
  return mark.starts_with(kOlderMark) || mark == kPredictedMark ? TensorRole::older
                                                                : TensorRole::state;
}

Checkpoint::Checkpoint(const std::string& folder)
    : folder_(folder), manifest_(open_manifest(folder)), files_(manifest_.shards.size()) {
  check_sizes(folder_, manifest_);
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i)
    for (const TensorPiece& piece : manifest_.shards[i].pieces)
      places_[piece.tensor.name].push_back({i, &piece});
  for (const auto& [name, places] : places_)
    tensors_.push_back(places.front().piece->tensor);
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

void Checkpoint::read_box(const TensorSpec& tensor, const Box& box,
                          std::span<std::byte> into) const {
  const auto found = places_.find(tensor.name);
  SLUICE_CHECK(found != places_.end() && found->second.front().piece->tensor == tensor,
               "tensor {} is not in {}", tensor.name, folder_);
  const TensorPiece wanted{tensor, box};
  const std::string problem = piece_problem(wanted);
  SLUICE_CHECK(problem.empty(), "{}", problem);
  const std::uint64_t bytes = tensor_bytes(tensor.dtype, stored_form(wanted).shape).value();
  SLUICE_CHECK(into.size() == bytes, "{} need {} bytes, not {}", piece_text(wanted), bytes,
               into.size());
  std::vector<std::byte> scratch;
  for (const Place& place : found->second) {
    const Box part = intersection(box, place.piece->box);
    if (part.empty()) continue;
    const SafetensorsFile& file = shard_file(place.shard);
    copy_part(file, *file.find(tensor.name), {place.piece->box, box, part}, into, scratch);
  }
}

}  // namespace sluice
