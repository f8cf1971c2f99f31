// The fields of a timeline in the JSON of a schedule.
#pragma once

#include "sluice/report/json.h"
#include "sluice/trace/timeline.h"

namespace sluice {

// timeline, messages, reductions where there are any, memory and critical_path.
void add_timeline(JsonObject& object, const Timeline& timeline);

}  // namespace sluice
