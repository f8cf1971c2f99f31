#include "sluice/runtime/files/find_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "sluice/base/text.h"
#include "sluice/runtime/files/atomic_file.h"
#include "sluice/runtime/files/checkpoint.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string latest_path(const std::string& folder) { return folder + "/LATEST"; }

// A folder, and no symbolic link to one: what is removed must lie here.
bool is_own_folder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (error && status.type() == fs::file_type::none)
    throw file_error("look at", path, error.value());
  return fs::is_directory(status);
}

// What LATEST says, or what is wrong with it; both empty when there is none.
struct Latest {
  std::optional<std::int64_t> step;
  std::string damage;
};

Latest read_latest(const std::string& folder) {
  Latest latest;
  const std::string path = latest_path(folder);
  if (!is_there(path)) return latest;
  try {
    const std::string text = InputFile(path, Symlinks::refuse).read_text(100);
    latest.step = parse_step_folder(trim(text));
    if (!latest.step)
      latest.damage = fmt::format("{} is {}: needs the name of a checkpoint such as {}", path,
                                  json_quote(text), step_folder_name(10));
  } catch (const UserError& error) {
    if (error.code() != ExitCode::bad_data) throw;
    latest.damage = error.what();
  }
  return latest;
}

// What is wrong with a checkpoint; "" when it is whole.
std::string damage_of(const std::string& checkpoint, Trust trust) {
  try {
    const Checkpoint opened(checkpoint);
    if (trust == Trust::every_byte) opened.verify();
    return "";
  } catch (const UserError& error) {
    if (error.code() != ExitCode::bad_data) throw;
    return error.what();
  }
}

[[noreturn]] void none_found(const std::string& folder, const FindOptions& options,
                             const std::vector<PassedOver>& passed_over) {
  std::vector<std::string> damage;
  for (const PassedOver& passed : passed_over)
    if (!passed.damage.empty()) damage.push_back(passed.damage);
  const std::size_t whole = passed_over.size() - damage.size();
  if (options.rollback > 0)
    throw user_error(
        "`rollback` is {}: {} has {} whole checkpoint{}; {}", options.rollback, folder, whole,
        whole == 1 ? "" : "s",
        whole > 1 ? fmt::format("go back {} at most", whole - 1) : "start again in another folder");
  throw UserError(fmt::format("{} holds no whole checkpoint: {}; restore one, or name another "
                              "checkpoint.folder",
                              folder, join(damage, "; ")),
                  ExitCode::bad_data);
}

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error && error != std::errc::no_such_file_or_directory)
    throw file_error("list", folder, error.value());
  return names;
}

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const auto step = parse_step_folder(name); step && is_own_folder(folder + "/" + name))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<FoundCheckpoint> find_latest(const std::string& folder, const FindOptions& options) {
  FoundCheckpoint found;
  const Latest latest = read_latest(folder);
  if (!latest.damage.empty()) found.passed_over.push_back({std::nullopt, latest.damage});
  std::vector<std::int64_t> steps = steps_in(folder);
  if (latest.step) {
    std::erase_if(steps, [&](std::int64_t step) { return step >= *latest.step; });
    steps.push_back(*latest.step);
  }
  std::reverse(steps.begin(), steps.end());
  int rollback = options.rollback;
  for (const std::int64_t step : steps) {
    const std::string path = folder + "/" + step_folder_name(step);
    // A folder without a manifest is a save that never ended: nothing to report.
    if (step != latest.step && !is_there(path + "/" + kManifestName)) continue;
    std::string damage = damage_of(path, options.trust);
    if (damage.empty() && rollback-- <= 0) {
      found.folder = path;
      found.step = step;
      return found;
    }
    found.passed_over.push_back({step, std::move(damage)});
  }
  if (found.passed_over.empty() && options.rollback == 0) return std::nullopt;
  none_found(folder, options, found.passed_over);
}

std::string checkpoint_at(const std::string& path, Trust trust) {
  const std::string folder = fs::path(path + "/").parent_path().string();
  if (is_there(folder + "/" + kManifestName) ||
      parse_step_folder(fs::path(folder).filename().string())) {
    const Checkpoint checkpoint(folder);
    if (trust == Trust::every_byte) checkpoint.verify();
    return folder;
  }
  const std::optional<FoundCheckpoint> found = find_latest(folder, {.trust = trust});
  if (!found)
    throw UserError(
        fmt::format("{} holds no checkpoint: name a folder such as {}, or the one above it", folder,
                    step_folder_name(10)),
        ExitCode::bad_data);
  if (!found->passed_over.empty())
    throw UserError(
        fmt::format("{}; {} is whole", found->passed_over.front().damage, found->folder),
        ExitCode::bad_data);
  return found->folder;
}

void check_start_step(const std::string& folder, std::int64_t start_step) {
  const std::optional<std::int64_t> latest = latest_step(folder);
  if (latest && *latest > start_step)
    throw user_error(
        "checkpoint.folder {} holds step {}, and this run starts at step {}: resume from it "
        "(checkpoint.load = latest), or name another folder",
        folder, *latest, start_step);
}

std::optional<std::int64_t> latest_step(const std::string& folder) {
  return read_latest(folder).step;
}

void write_latest(FileSystem& files, const std::string& folder, std::int64_t step) {
  write_file_atomically(files, latest_path(folder), step_folder_name(step) + "\n");
}

std::vector<std::string> set_aside(FileSystem& files, const std::string& folder,
                                   const FoundCheckpoint& found) {
  std::vector<std::string> lines;
  for (const auto& [step, damage] : found.passed_over) {
    const std::string from = step ? folder + "/" + step_folder_name(*step) : "";
    if (!step || !is_there(from)) {
      lines.push_back(fmt::format("passed over: {}", damage));
      continue;
    }
    const std::string name = from + (damage.empty() ? ".rolled-back" : ".damaged");
    std::string to = name;
    for (int n = 2; is_there(to); ++n)
      to = fmt::format("{}-{}", name, n);
    if (files.rename(from, to) != 0) throw file_error("rename", from, errno);
    lines.push_back(damage.empty()
                        ? fmt::format("rolled back: step {} is now {}", *step, to)
                        : fmt::format("step {} is damaged and now {}: {}", *step, to, damage));
  }
  if (lines.empty()) return lines;
  sync_folder(files, folder);
  write_latest(files, folder, found.step);
  return lines;
}

}  // namespace sluice
