// A disk that fails at one chosen call. Calls are counted from 1; the one numbered `at` fails, or
// is the last before the process is killed or the power is cut. Names and bytes that were not
// synced then are lost, or not, as the fault says. Works on a real folder; its fsync only takes
// notes, so that hundreds of runs take seconds. For one thread.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "sluice/runtime/files/file_system.h"

namespace sluice::test {

enum class Fault {
  none,
  error,           // the call fails with an errno; later ones work
  kill,            // the call is half done (a write) or not done, and nothing after it
  power_cut,       // as kill; unsynced bytes and unsynced names are lost
  power_cut_bytes  // as kill; unsynced bytes are lost, names are kept
};

inline void PrintTo(Fault fault, std::ostream* out) {
  switch (fault) {
    case Fault::none: *out << "none"; break;
    case Fault::error: *out << "error"; break;
    case Fault::kill: *out << "kill"; break;
    case Fault::power_cut: *out << "power_cut"; break;
    case Fault::power_cut_bytes: *out << "power_cut_bytes"; break;
  }
}

// Thrown at the call that kills. After it the file system does nothing any more.
struct Killed {};

class FaultyFileSystem : public FileSystem {
 public:
  // `root` is the only folder that is written to.
  explicit FaultyFileSystem(std::string root, Fault fault = Fault::none, int at = 0,
                            int error = EIO)
      : root_(std::move(root)), fault_(fault), at_(at), error_(error) {}

  int calls() const { return calls_; }
  bool happened() const { return happened_; }

  int open(const std::string& path, int flags) override {
    if (const int result = step(); result != 0) return result;
    struct stat before {};
    const bool existed = ::stat(path.c_str(), &before) == 0;
    const int fd = real_.open(path, flags);
    if (fd < 0) return fd;
    paths_[fd] = path;
    if (!existed) undo_.push_back({parent_folder(path), [path] { ::unlink(path.c_str()); }});
    if ((flags & O_ACCMODE) != O_RDONLY && !durable_.contains(inode(fd)))
      durable_[inode(fd)] = existed ? before.st_size : 0;
    return fd;
  }

  ssize_t write(int fd, const void* bytes, std::size_t size) override {
    ++calls_;
    if (dead_) return fail(EIO);
    if (calls_ == at_ && fault_ != Fault::none) {
      happened_ = true;
      // A full disk takes what fits; a kill may come in the middle.
      if (size > 1) (void)!::write(fd, bytes, size / 2);
      if (fault_ == Fault::error) return fail(error_);
      die();
    }
    return ::write(fd, bytes, size);
  }

  int fsync(int fd) override {
    if (const int result = step(); result != 0) return result;
    struct stat status {};
    ::fstat(fd, &status);
    if (S_ISDIR(status.st_mode))
      std::erase_if(undo_, [&](const Undo& undo) { return undo.folder == paths_[fd]; });
    else
      durable_[status.st_ino] = status.st_size;
    return 0;
  }

  int ftruncate(int fd, off_t size) override {
    if (const int result = step(); result != 0) return result;
    return ::ftruncate(fd, size);
  }

  // Destructors close, and must not throw; a kill here is the same as one at the next call.
  int close(int fd) override {
    const int result = fault_ == Fault::error || dead_ ? step() : 0;
    ::close(fd);  // even when dead: the descriptor is this process's
    return result;
  }

  int rename(const std::string& from, const std::string& to) override {
    if (const int result = step(); result != 0) return result;
    const auto put_back = keep(to);
    const int result = real_.rename(from, to);
    if (result == 0)
      undo_.push_back({parent_folder(to), [this, from, to, put_back] {
                         real_.rename(to, from);
                         put_back();
                       }});
    return result;
  }

  int unlink(const std::string& path) override {
    if (const int result = step(); result != 0) return result;
    const auto put_back = keep(path);
    const int result = real_.unlink(path);
    if (result == 0) undo_.push_back({parent_folder(path), put_back});
    return result;
  }

  int mkdir(const std::string& path) override {
    if (const int result = step(); result != 0) return result;
    const int result = real_.mkdir(path);
    if (result == 0)
      undo_.push_back({parent_folder(path), [path] { std::filesystem::remove_all(path); }});
    return result;
  }

  int rmdir(const std::string& path) override {
    if (const int result = step(); result != 0) return result;
    return real_.rmdir(path);
  }

 private:
  struct Undo {
    std::string folder;  // whose fsync makes it final
    std::function<void()> run;
  };

  static int fail(int error) {
    errno = error;
    return -1;
  }

  int step() {
    ++calls_;
    if (dead_) return fail(EIO);
    if (calls_ != at_ || fault_ == Fault::none) return 0;
    happened_ = true;
    if (fault_ == Fault::error) return fail(error_);
    die();
  }

  static ino_t inode(int fd) {
    struct stat status {};
    ::fstat(fd, &status);
    return status.st_ino;
  }

  // A second name for the file at `path`, outside `root`, and how to put it back.
  std::function<void()> keep(const std::string& path) {
    if (!std::filesystem::exists(path)) return [] {};
    const std::string copy = root_ + ".kept-" + std::to_string(kept_++);
    std::filesystem::remove(copy);
    std::filesystem::create_hard_link(path, copy);
    return [path, copy] { std::filesystem::rename(copy, path); };
  }

  [[noreturn]] void die() {
    dead_ = true;
    if (fault_ == Fault::power_cut)
      for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo)
        undo->run();
    if (fault_ != Fault::kill)
      for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
        struct stat status {};
        if (!entry.is_regular_file() || ::stat(entry.path().c_str(), &status) != 0) continue;
        const auto durable = durable_.find(status.st_ino);
        if (durable != durable_.end() && durable->second < status.st_size)
          std::filesystem::resize_file(entry.path(), static_cast<std::uintmax_t>(durable->second));
      }
    throw Killed();
  }

  std::string root_;
  Fault fault_;
  int at_;
  int error_;
  RealFileSystem real_;
  int calls_ = 0;
  int kept_ = 0;
  bool dead_ = false;
  bool happened_ = false;
  std::map<int, std::string> paths_;
  std::map<ino_t, off_t> durable_;  // bytes of each file that survive a power cut
  std::vector<Undo> undo_;
};

}  // namespace sluice::test
