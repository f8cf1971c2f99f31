// The part of a schedule that evaluates: its forwards, with their sends and receives.
#pragma once

#include "sluice/schedule/schedule.h"

namespace sluice {

// Valid where `lowered` is: leaving ops out keeps the order of the rest.
Schedule forward_only(const Schedule& lowered);

}  // namespace sluice
