// To be preloaded: reading calls that fail as a file server's do. In the environment,
// SLUICE_FAILING_CALL is "CALL NAME ERROR": CALL (open, pread or lstat) fails with errno ERROR for
// every path that contains NAME. Allocates nothing: libraries call these before anything is set up.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool fails(const char* call, const char* path) {
  const char* said = std::getenv("SLUICE_FAILING_CALL");
  char which[16], name[256];
  int error = 0;
  if (!said || !path || std::sscanf(said, "%15s %255s %d", which, name, &error) != 3) return false;
  if (std::strcmp(which, call) != 0 || !std::strstr(path, name)) return false;
  errno = error;
  return true;
}

bool fails(const char* call, int fd) {
  if (!std::getenv("SLUICE_FAILING_CALL")) return false;
  const int before = errno;
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const bool known = ::readlink(link, path, sizeof path - 1) > 0;
  errno = before;
  return known && fails(call, path);
}

template <typename Call>
Call* next(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

using Open = int(const char*, int, mode_t);
using Pread = ssize_t(int, void*, size_t, off_t);
using Lstat = int(const char*, struct stat*);

}  // namespace

// Under both names that each has in a library for files of any size.
extern "C" {

int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);  // nobody looks at it where none was given
  va_end(rest);
  return fails("open", path) ? -1 : next<Open>("open")(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return fails("open", path) ? -1 : next<Open>("open64")(path, flags, mode);
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) {
  return fails("pread", fd) ? -1 : next<Pread>("pread")(fd, into, size, offset);
}
ssize_t pread64(int fd, void* into, size_t size, off_t offset) {
  return fails("pread", fd) ? -1 : next<Pread>("pread64")(fd, into, size, offset);
}

int lstat(const char* __restrict path, struct stat* __restrict status) {
  return fails("lstat", path) ? -1 : next<Lstat>("lstat")(path, status);
}
int lstat64(const char* __restrict path, struct stat64* __restrict status) {
  return fails("lstat", path) ? -1
                              : next<int(const char*, struct stat64*)>("lstat64")(path, status);
}

// What a compiler with _FORTIFY_SOURCE calls instead.
int __open_2(const char* path, int flags) {
  return fails("open", path) ? -1 : next<int(const char*, int)>("__open_2")(path, flags);
}
int __open64_2(const char* path, int flags) {
  return fails("open", path) ? -1 : next<int(const char*, int)>("__open64_2")(path, flags);
}
ssize_t __pread_chk(int fd, void* into, size_t size, off_t offset, size_t room) {
  using Checked = ssize_t(int, void*, size_t, off_t, size_t);
  return fails("pread", fd) ? -1 : next<Checked>("__pread_chk")(fd, into, size, offset, room);
}
ssize_t __pread64_chk(int fd, void* into, size_t size, off_t offset, size_t room) {
  using Checked = ssize_t(int, void*, size_t, off_t, size_t);
  return fails("pread", fd) ? -1 : next<Checked>("__pread64_chk")(fd, into, size, offset, room);
}
}
