#include "sluice/cli/report.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "sluice/base/say.h"
#include "sluice/comm/communicator.h"

namespace sluice::cli {
namespace {

// A key of a configuration is a flag as it stands.
std::string flag_of(std::string_view field) {
  if (field == "field") return "flag";
  std::string flag(field);
  if (flag.find('.') == flag.npos) std::replace(flag.begin(), flag.end(), '_', '-');
  return "--" + flag;
}

ExitCode fail(ExitCode code, const std::string& text) {
  say("sluice: {}\n", as_flags(text));
  return code;
}

}  // namespace

std::string as_flags(std::string_view text) { return spell_fields(text, flag_of); }

ExitCode report_error(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const UserError& error) {
    return fail(error.code(), error.what());
  } catch (const CommError& error) {
    return fail(error.code(), error.what());
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
