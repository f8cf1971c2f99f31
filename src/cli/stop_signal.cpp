#include "sluice/cli/stop_signal.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "sluice/base/error.h"

namespace sluice::cli {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kOneRequest = 2 * kSecond;
constexpr const char* kAnswer = "sluice: stopping after this step; again to quit without saving\n";
// Over the progress bar.
constexpr const char* kAnswerOnTerminal =
    "\r\x1b[Ksluice: stopping after this step; again to quit without saving\n";

// A signal handler can reach nothing but globals.
std::atomic<bool> stop_requested = false;
std::atomic<std::int64_t> first_signal = 0;  // when it came; 0: none has
std::atomic<const char*> answer = nullptr;   // what is said then; null: nothing
static_assert(std::atomic<bool>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

// Calls only what POSIX allows in a handler. Several threads may run it at once.
void request_stop(int) {
  const int error = errno;
  timespec clock{};
  clock_gettime(CLOCK_MONOTONIC, &clock);
  const std::int64_t now = clock.tv_sec * kSecond + clock.tv_nsec;
  std::int64_t first = 0;
  if (first_signal.compare_exchange_strong(first, now)) {
    stop_requested = true;
    if (const char* text = answer) {
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    }
  } else if (now - first > kOneRequest) {
    _exit(static_cast<int>(ExitCode::terminated));
  }
  errno = error;
}

}  // namespace

const std::atomic<bool>& stop_on_signals(bool speaks) {
  if (speaks) answer = isatty(STDERR_FILENO) == 1 ? kAnswerOnTerminal : kAnswer;
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
  return stop_requested;
}

}  // namespace sluice::cli
