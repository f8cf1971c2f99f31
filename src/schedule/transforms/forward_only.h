// The part of a schedule that evaluates: its forwards, with their sends and receives.
#pragma once

#include "schedule/schedule.h"

namespace sluice {

// Of a lowered schedule; any part of a valid order is valid, so this one is, too.
Schedule forward_only(const Schedule& lowered);

}  // namespace sluice
