#include "runtime/files/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "base/text.h"
#include "runtime/files/atomic_file.h"
#include "runtime/files/checkpoint.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-", kRecordSuffix = ".record.json";
constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{1} << 30;

std::string latest_path(const std::string& folder) { return folder + "/LATEST"; }

std::string record_name(int rank) { return fmt::format("rank-{:05}{}", rank, kRecordSuffix); }

// Names in a folder; none when there is no such folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error && error != std::errc::no_such_file_or_directory)
    throw file_error("list", folder, error.value());
  return names;
}

// A folder, and no symbolic link to one: what is removed must lie here.
bool is_own_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(path, ignored));
}

// What LATEST says, or why it says nothing; both empty when there is none.
struct Latest {
  std::optional<std::int64_t> step;
  std::string problem;
};

Latest read_latest(const std::string& folder) {
  Latest latest;
  const std::string path = latest_path(folder);
  if (!is_there(path)) return latest;
  try {
    const std::string text = InputFile(path, Symlinks::refuse).read_text(100);
    latest.step = parse_step_folder(trim(text));
    if (!latest.step)
      latest.problem = fmt::format("{} is {}: needs the name of a checkpoint such as {}", path,
                                   json_quote(text), step_folder_name(10));
  } catch (const UserError& error) {
    latest.problem = error.what();
  }
  return latest;
}

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

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<std::int64_t> parse_step_folder(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::optional<std::int64_t> step = parse_int(name.substr(kStepPrefix.size()));
  if (!step || *step < 0 || step_folder_name(*step) != name) return std::nullopt;
  return step;
}

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const auto step = parse_step_folder(name); step && is_own_folder(folder + "/" + name))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<FoundCheckpoint> find_latest(const std::string& folder) {
  FoundCheckpoint found;
  const auto good = [&](std::int64_t step) {
    const std::string path = folder + "/" + step_folder_name(step);
    try {
      Checkpoint(path).verify();
    } catch (const UserError& error) {
      found.passed_over.emplace_back(error.what());
      return false;
    }
    found.folder = path;
    found.step = step;
    return true;
  };
  const Latest latest = read_latest(folder);
  if (!latest.problem.empty()) found.passed_over.push_back(latest.problem);
  if (latest.step && good(*latest.step)) return found;
  std::vector<std::int64_t> steps = steps_in(folder);
  std::reverse(steps.begin(), steps.end());
  for (const std::int64_t step : steps) {
    // A folder without a manifest is a save that never ended: nothing to report.
    const std::string manifest = folder + "/" + step_folder_name(step) + "/" + kManifestName;
    if (step == latest.step || !is_there(manifest)) continue;
    if (good(step)) return found;
  }
  if (found.passed_over.empty()) return std::nullopt;
  throw UserError(fmt::format("{} holds no checkpoint that can be trusted: {}", folder,
                              join(found.passed_over, "; ")),
                  ExitCode::bad_data);
}

std::string checkpoint_at(const std::string& path) {
  const std::string folder = fs::path(path + "/").parent_path().string();
  if (is_there(folder + "/" + kManifestName) ||
      parse_step_folder(fs::path(folder).filename().string())) {
    Checkpoint(folder).verify();
    return folder;
  }
  const std::optional<FoundCheckpoint> found = find_latest(folder);
  if (!found)
    throw UserError(
        fmt::format("{} holds no checkpoint: name a folder such as {}, or the one above it", folder,
                    step_folder_name(10)),
        ExitCode::bad_data);
  if (!found->passed_over.empty())
    throw UserError(fmt::format("{}; {} is whole", found->passed_over.front(), found->folder),
                    ExitCode::bad_data);
  return found->folder;
}

void check_start_step(const std::string& folder, std::int64_t start_step) {
  const Latest latest = read_latest(folder);
  if (latest.step && *latest.step > start_step)
    throw user_error(
        "checkpoint.folder {} holds step {}, and this run starts at step {}: resume from it "
        "(checkpoint.load = latest), or name another folder",
        folder, *latest.step, start_step);
}

CheckpointFolder::CheckpointFolder(FileSystem& files, CheckpointFolderOptions options)
    : files_(files), options_(std::move(options)) {
  SLUICE_CHECK(0 <= options_.rank && options_.rank < options_.num_ranks, "rank {} of {}",
               options_.rank, options_.num_ranks);
  if (options_.rank != 0) return;
  make_folders(files_, options_.folder);
  lock();
  try {
    check_start_step(options_.folder, options_.start_step);
    remove_half_written();
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

CheckpointFolder::~CheckpointFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

std::string CheckpointFolder::step_path(std::int64_t step) const {
  return options_.folder + "/" + step_folder_name(step);
}

void CheckpointFolder::lock() {
  // The lock dies with its process, so the file itself is never stale and never removed.
  const std::string path = options_.folder + "/.lock";
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (lock_fd_ < 0) throw file_error("open", path, errno);
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(lock_fd_);
  if (error != EWOULDBLOCK) throw file_error("lock", path, error);
  throw UserError(fmt::format("checkpoint.folder {} is in use by another run: wait for its end, or "
                              "name another folder",
                              options_.folder),
                  ExitCode::temporary);
}

void CheckpointFolder::remove_half_written() {
  for (const std::string& name : names_in(options_.folder))
    if (is_temporary_name(name)) remove_if_there(files_, options_.folder + "/" + name);
  for (const std::int64_t step : steps_in(options_.folder))
    if (!is_there(step_path(step) + "/" + kManifestName))
      remove_checkpoint(files_, step_path(step));
}

void CheckpointFolder::write_shard(std::int64_t step, const std::vector<TensorPiece>& pieces,
                                   const PieceBytes& bytes) {
  const std::string folder = step_path(step);
  if (read_latest(options_.folder).step == step)
    throw user_error("{} is saved already, and is the latest checkpoint: it is not overwritten",
                     folder);
  make_folders(files_, folder);
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

void CheckpointFolder::commit(const CheckpointInfo& info) {
  SLUICE_CHECK(options_.rank == 0, "commit on rank {}", options_.rank);
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
  write_file_atomically(files_, latest_path(options_.folder), step_folder_name(info.step) + "\n");
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
