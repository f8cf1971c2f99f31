// The methods of updating a pipeline's weights (plan/update_methods.h) as a table and as JSON.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan/update_methods.h"

namespace sluice {

std::string update_methods_text(const RunPlan& plan, const std::vector<UpdateMethod>& methods);
std::string update_methods_json(const std::vector<UpdateMethod>& methods);

}  // namespace sluice
