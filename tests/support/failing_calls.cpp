// To be preloaded: reading calls that fail as a file server's do. In the environment,
// SLUICE_FAILING_CALL is "CALL NAME ERROR": CALL (open, pread or lstat) fails with errno ERROR for
// every path that contains NAME.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <sstream>
#include <string>

namespace {

bool fails(const std::string& call, const std::string& path) {
  const char* said = std::getenv("SLUICE_FAILING_CALL");
  std::istringstream words(said ? said : "");
  std::string which, name;
  int error = 0;
  if (!(words >> which >> name >> error)) return false;
  if (which != call || path.find(name) == std::string::npos) return false;
  errno = error;
  return true;
}

std::string path_of(int fd) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(link.c_str(), path, sizeof path - 1) > 0 ? path : "";
}

template <typename Call>
Call* next(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);  // nobody looks at it where none was given
  va_end(rest);
  if (fails("open", path)) return -1;
  return next<int(const char*, int, mode_t)>("open")(path, flags, mode);
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) {
  if (fails("pread", path_of(fd))) return -1;
  return next<ssize_t(int, void*, size_t, off_t)>("pread")(fd, into, size, offset);
}

int lstat(const char* __restrict path, struct stat* __restrict status) {
  if (fails("lstat", path)) return -1;
  return next<int(const char*, struct stat*)>("lstat")(path, status);
}
}
