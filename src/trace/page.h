// The files of page/, turned into constants at build time by embed.cmake, so that the program needs
// nothing beside itself at run time.
#pragma once

#include <string_view>

namespace sluice::page {

extern const std::string_view kHtml;  // with {{title}}, {{style}}, {{data}} and {{script}}
extern const std::string_view kStyle;
extern const std::string_view kScript;

}  // namespace sluice::page
