// A measured step as a picture or a trace.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace sluice::cli {

// The ending of `path` decides: .svg, .html, else Chrome's JSON.
void write_trace(const std::string& path, const Schedule& schedule,
                 std::vector<DeviceTimeline> devices);

}  // namespace sluice::cli
