#include "sluice/base/error.h"

namespace sluice {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  throw InternalError(
      fmt::format("{}:{}: internal error: {} is false: {}", file, line, condition, detail));
}

}  // namespace sluice
