#include "sluice/run/copies.h"

#include <algorithm>

#include "sluice/config/resolve.h"

namespace sluice {

bool owners_update(const RunPlan& plan) {
  return (plan.endless || goes_on(plan.config)) &&
         plan.config.asynchronous.states == CopyStates::owner;
}

bool updates_stage(const RunPlan& plan, int stage, int device) {
  return !owners_update(plan) || plan.schedule.owner_of(stage) == device;
}

CopyPeers gradient_peers(const RunPlan& plan, int stage, int device) {
  CopyPeers peers;
  const bool updates = updates_stage(plan, stage, device);
  for (const int holder : plan.schedule.placement.holders_of(stage)) {
    if (holder == device) continue;
    if (updates) peers.from.push_back(holder);
    if (updates_stage(plan, stage, holder)) peers.to.push_back(holder);
  }
  return peers;
}

CopyPeers value_peers(const RunPlan& plan, int stage, int device) {
  CopyPeers peers;
  if (!owners_update(plan)) return peers;
  const int owner = plan.schedule.owner_of(stage);
  if (owner != device) {
    peers.from.push_back(owner);
    return peers;
  }
  for (const int holder : plan.schedule.placement.holders_of(stage))
    if (holder != device) peers.to.push_back(holder);
  return peers;
}

CopyPeers tied_peers(const RunPlan& plan, int stage, int device) {
  const int last = plan.schedule.num_stages() - 1, other = stage == 0 ? last : 0;
  // Devices that update one end and not the other. Those that update both need nobody.
  const auto updates = [&](int end, int holder) {
    const std::vector<int> holders = plan.schedule.placement.holders_of(end);
    return std::find(holders.begin(), holders.end(), holder) != holders.end() &&
           updates_stage(plan, end, holder);
  };
  CopyPeers peers;
  if (last == 0) return peers;
  if (updates(stage, device) && !updates(other, device))
    peers.from.push_back(plan.schedule.owner_of(other));
  if (plan.schedule.owner_of(stage) == device)
    for (const int holder : plan.schedule.placement.holders_of(other))
      if (updates(other, holder) && !updates(stage, holder)) peers.to.push_back(holder);
  return peers;
}

}  // namespace sluice
