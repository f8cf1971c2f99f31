// Errors, in two kinds. A user's mistake is a UserError: one line with the value, the cause and the
// remedy; the command line prints it and exits with its code. Our own mistake is a failed
// SLUICE_CHECK, which prints where, what and both values.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {

// Exit codes of every subcommand.
enum class ExitCode : int {
  ok = 0,
  invalid_schedule = 1,
  usage = 2,        // wrong flag, wrong value, unreadable configuration or schedule text
  bad_data = 3,     // a data set or checkpoint that cannot be trusted
  diverged = 17,    // the loss or the gradient is no longer a number
  internal = 70,    // a bug in Sluice
  temporary = 75,   // out of disk, or another failure that a retry may cure
  terminated = 143  // SIGTERM, after saving
};

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& what, ExitCode code = ExitCode::usage)
      : std::runtime_error(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// throw user_error("`devices` is {}: needs at least 1", p);
template <typename... Args>
UserError user_error(fmt::format_string<Args...> text, Args&&... args) {
  return UserError(fmt::format(text, std::forward<Args>(args)...));
}

// throw bad_data("{} is {}: cause", ...): exit code 3.
template <typename... Args>
UserError bad_data(fmt::format_string<Args...> text, Args&&... args) {
  return UserError(fmt::format(text, std::forward<Args>(args)...), ExitCode::bad_data);
}

// A text of the library calls an option by the name of its field, between backquotes: `devices`.
// Who took the option from a user writes it as that user does: `spelling` gives --devices, or the
// key of a configuration; "" leaves it as it is. `field` stands for the word itself: flag, or key.
std::string spell_fields(std::string_view text, std::string (*spelling)(std::string_view field));

// A broken promise inside Sluice. Never the user's fault.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);

}  // namespace sluice

#define SLUICE_CHECK(condition, ...)                                                    \
  do {                                                                                  \
    if (!(condition))                                                                   \
      ::sluice::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
