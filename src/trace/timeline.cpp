#include "sluice/trace/timeline.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

std::size_t Timeline::number_in_group(std::size_t device) const {
  const std::string& group = devices[device].group;
  if (group.empty()) return device;
  std::size_t first = device;
  while (first > 0 && devices[first - 1].group == group)
    --first;
  return device - first;
}

std::string Timeline::device_name(std::size_t device) const {
  const std::string& group = devices[device].group;
  return fmt::format("{} {}", group.empty() ? "device" : group, number_in_group(device));
}

void add_run(Timeline& timeline, const std::string& group, Timeline run) {
  const auto first = static_cast<int>(timeline.devices.size());
  const auto first_message = static_cast<int>(timeline.messages.size());
  timeline.makespan = std::max(timeline.makespan, run.makespan);
  for (DeviceTimeline& device : run.devices) {
    device.group = group;
    for (Span& span : device.spans)
      if (span.message >= 0) span.message += first_message;
    timeline.devices.push_back(std::move(device));
  }
  for (Message& message : run.messages) {
    message.from += first;
    message.to += first;
    timeline.messages.push_back(message);
  }
}

}  // namespace sluice
