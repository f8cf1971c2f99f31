#include "sluice/cli/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>

#include "sluice/base/say.h"
#include "sluice/comm/communicator.h"

namespace sluice::cli {
namespace {

// The fields that texts of the library name; a word of a user's between backquotes stays.
constexpr std::array<std::string_view, 35> kFields = {
    "cluster.device", "comm.backend", "data.path",       "block",
    "contention",     "costs",        "devices",         "format",
    "group_size",     "keep_after_i", "model",           "memory_cap",
    "microbatches",   "out",          "prompt_ids",      "slices",
    "reduce_time",    "rollback",     "update_time",     "slice_sizes",
    "tokens",         "trace",        "sequence_length", "stages_per_device",
    "max_length",     "min_degree",   "windows",         "order",
    "pipes",          "in_flight",    "border",          "update_slot",
    "weights",        "max_mismatch", "max_delay"};

std::string flag_of(std::string_view field) {
  if (field == "field") return "flag";
  if (std::find(kFields.begin(), kFields.end(), field) == kFields.end()) return "";
  std::string flag(field);
  // A key of a configuration is a flag as it stands.
  if (flag.find('.') == flag.npos) std::replace(flag.begin(), flag.end(), '_', '-');
  return "--" + flag;
}

ExitCode fail(ExitCode code, const std::string& text) {
  say("sluice: {}\n", text);
  return code;
}

}  // namespace

std::string as_flags(std::string_view text) { return spell_fields(text, flag_of); }

ExitCode report_error(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const UserError& error) {
    return fail(error.code(), as_flags(error.what()));
  } catch (const CommError& error) {
    return fail(error.code(), as_flags(error.what()));
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::temporary, "out of memory: use fewer devices, microbatches or slices");
  } catch (const std::exception& error) {
    // After the first line may come more: where it happened.
    std::string text = error.what();
    text.insert(std::min(text.find('\n'), text.size()), " (this is a bug in Sluice)");
    return fail(ExitCode::internal, text);
  }
}

}  // namespace sluice::cli
