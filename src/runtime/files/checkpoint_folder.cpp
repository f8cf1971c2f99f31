#include "sluice/runtime/files/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "sluice/base/text.h"
#include "sluice/runtime/files/atomic_file.h"
#include "sluice/runtime/files/checkpoint.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecordSuffix = ".record.json";
constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{1} << 30;

std::string record_name(int rank) { return fmt::format("rank-{:05}{}", rank, kRecordSuffix); }

// Whether the manifest verifies and the files are there with their sizes.
bool is_whole(const std::string& checkpoint) {
  try {
    const Checkpoint opened(checkpoint);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

void remove_if_there(FileSystem& files, const std::string& path) {
  if (files.unlink(path) != 0 && errno != ENOENT) throw file_error("remove", path, errno);
}

// The manifest goes first, and durably: from then on nobody takes the rest for a checkpoint. Files
// that are not ours stay, and so does their folder.
void remove_checkpoint(FileSystem& files, const std::string& folder) {
  remove_if_there(files, folder + "/" + kManifestName);
  sync_folder(files, folder);
  for (const std::string& name : names_in(folder))
    if (name.starts_with("rank-") || is_temporary_name(name))
      remove_if_there(files, folder + "/" + name);
  if (files.rmdir(folder) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT)
    throw file_error("remove", folder, errno);
}

}  // namespace

CheckpointFolder::CheckpointFolder(FileSystem& files, CheckpointFolderOptions options,
                                   std::optional<FolderLock> lock)
    : files_(files), options_(std::move(options)), lock_(std::move(lock)) {
  SLUICE_CHECK(0 <= options_.rank && options_.rank < options_.num_ranks, "rank {} of {}",
               options_.rank, options_.num_ranks);
  if (options_.rank != 0) return;
  make_folders(files_, options_.folder);
  if (!lock_) lock_.emplace(options_.folder);
  check_start_step(options_.folder, options_.start_step);
  remove_half_written();
}

std::string CheckpointFolder::step_path(std::int64_t step) const {
  return options_.folder + "/" + step_folder_name(step);
}

// Never the run's folder above it: that would be one without the lock.
void CheckpointFolder::make_step_folder(const std::string& folder) {
  if (is_there(folder)) return;
  // Another rank may make it at the same moment.
  if (files_.mkdir(folder) != 0 && errno != EEXIST) throw file_error("make folder", folder, errno);
  sync_folder(files_, options_.folder);
}

void CheckpointFolder::remove_half_written() {
  for (const std::string& name : names_in(options_.folder))
    if (is_temporary_name(name)) remove_if_there(files_, options_.folder + "/" + name);
  for (const std::int64_t step : steps_in(options_.folder))
    if (!is_there(step_path(step) + "/" + kManifestName))
      remove_checkpoint(files_, step_path(step));
}

void CheckpointFolder::check_lock() const {
  if (lock_) {
    lock_->check();
    return;
  }
  if (!is_there(options_.folder + "/" + kLockName)) throw moved_error(options_.folder);
}

template <typename Work>
void CheckpointFolder::guarded(const Work& work) const {
  try {
    work();
  } catch (const UserError&) {
    check_lock();
    throw;
  }
}

void CheckpointFolder::write_shard(std::int64_t step, const std::vector<TensorPiece>& pieces,
                                   const PieceBytes& bytes) {
  guarded([&] { write(step, pieces, bytes); });
}

void CheckpointFolder::commit(const CheckpointInfo& info) {
  guarded([&] { finish(info); });
}

void CheckpointFolder::write(std::int64_t step, const std::vector<TensorPiece>& pieces,
                             const PieceBytes& bytes) {
  const std::string folder = step_path(step);
  if (latest_step(options_.folder) == step)
    throw user_error("{} is saved already, and is the latest checkpoint: it is not overwritten",
                     folder);
  make_step_folder(folder);
  // A whole one that LATEST does not name was never committed, or was rolled back; it stops being
  // whole before its first shard changes.
  const std::string manifest = folder + "/" + kManifestName;
  if (is_there(manifest)) {
    remove_if_there(files_, manifest);
    sync_folder(files_, folder);
  }

  ShardRecord shard;
  shard.file = shard_file_name(options_.rank);
  std::vector<TensorSpec> stored;
  std::map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    stored.push_back(stored_form(pieces[i]));
    index[pieces[i].tensor.name] = i;
  }
  SafetensorsWriter writer(
      files_, folder + "/" + shard.file, std::move(stored),
      {{"format", "pt"}, {"rank", std::to_string(options_.rank)}, {"step", std::to_string(step)}});
  for (const TensorInfo& tensor : writer.tensors()) {
    const std::size_t i = index.at(tensor.name);
    const std::span<const std::byte> content = bytes(i);
    SLUICE_CHECK(content.size() == tensor.bytes, "tensor {} needs {} bytes, and {} are given",
                 tensor.name, tensor.bytes, content.size());
    writer.write(content);
    shard.pieces.push_back(pieces[i]);
  }
  WrittenFile written = writer.commit();
  shard.bytes = written.bytes;
  shard.sha256 = std::move(written.sha256);
  write_file_atomically(files_, folder + "/" + record_name(options_.rank),
                        write_shard_record(shard, step));
}

void CheckpointFolder::finish(const CheckpointInfo& info) {
  SLUICE_CHECK(options_.rank == 0, "commit on rank {}", options_.rank);
  check_lock();
  const std::string folder = step_path(info.step);
  Manifest manifest{info, {}};
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    const std::string path = folder + "/" + record_name(rank);
    ShardRecord shard = read_shard_record(
        InputFile(path, Symlinks::refuse).read_text(kMaxRecordBytes), info.step, path);
    SLUICE_CHECK(shard.file == shard_file_name(rank), "{} is of {}", path, shard.file);
    manifest.shards.push_back(std::move(shard));
  }
  const std::string problem = tiling_problem(manifest.shards);
  SLUICE_CHECK(problem.empty(), "{}", problem);
  // Shards of a killed save with more ranks would make this one look foreign.
  for (const std::string& name : names_in(folder))
    if (name.ends_with(".safetensors") &&
        std::none_of(manifest.shards.begin(), manifest.shards.end(),
                     [&](const ShardRecord& shard) { return shard.file == name; }))
      remove_if_there(files_, folder + "/" + name);
  const std::string text = write_manifest(manifest), path = folder + "/" + kManifestName;
  SLUICE_CHECK(read_manifest(text, path).shards == manifest.shards, "{} does not read back", path);
  write_file_atomically(files_, path, text);
  write_latest(files_, options_.folder, info.step);
  for (const std::string& name : names_in(folder))
    if (name.ends_with(kRecordSuffix)) remove_if_there(files_, folder + "/" + name);
  if (options_.keep_latest_k > 0) remove_old(info.step);
}

void CheckpointFolder::remove_old(std::int64_t latest) {
  std::vector<std::int64_t> steps = steps_in(options_.folder);
  std::reverse(steps.begin(), steps.end());
  int kept = 0;
  for (const std::int64_t step : steps) {
    if (step > latest) continue;
    if (kept < options_.keep_latest_k) {
      kept += step == latest || is_whole(step_path(step));
      continue;
    }
    remove_checkpoint(files_, step_path(step));
  }
}

}  // namespace sluice
