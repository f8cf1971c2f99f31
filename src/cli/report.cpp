#include "sluice/cli/report.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "sluice/base/say.h"
#include "sluice/comm/communicator.h"

namespace sluice::cli {
namespace {

ExitCode fail(ExitCode code, const std::string& text) {
  say("sluice: {}\n", text);
  return code;
}

}  // namespace

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
