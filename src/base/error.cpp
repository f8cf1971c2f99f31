#include "sluice/base/error.h"

namespace sluice {

std::string spell_fields(std::string_view text, std::string (*spelling)(std::string_view field)) {
  std::string out;
  for (;;) {
    const std::size_t open = text.find('`');
    out += text.substr(0, open);
    if (open == text.npos) return out;
    text.remove_prefix(open);
    const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.", 1);
    const bool named = end != text.npos && end > 1 && text[end] == '`';
    const std::string spelled = named ? spelling(text.substr(1, end - 1)) : "";
    // A backquote that opens no field that is known is itself.
    out += spelled.empty() ? "`" : spelled;
    text.remove_prefix(spelled.empty() ? 1 : end + 1);
  }
}

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  throw InternalError(
      fmt::format("{}:{}: internal error: {} is false: {}", file, line, condition, detail));
}

}  // namespace sluice
