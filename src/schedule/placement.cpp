#include "sluice/schedule/placement.h"

#include <algorithm>

#include "sluice/base/error.h"

namespace sluice {

std::string_view placement_name(PlacementKind kind) {
  switch (kind) {
    case PlacementKind::linear: return "linear";
    case PlacementKind::looped: return "looped";
    case PlacementKind::vee: return "v";
    case PlacementKind::mirrored: return "mirrored";
    case PlacementKind::custom: return "custom";
  }
  return "?";
}

Placement::Placement(PlacementKind kind, int num_devices, std::vector<std::vector<int>> device_of)
    : kind_(kind), num_devices_(num_devices), device_of_(std::move(device_of)) {
  stages_of_.resize(static_cast<std::size_t>(num_devices));
  for (const auto& pipe : device_of_) {
    SLUICE_CHECK(pipe.size() == device_of_[0].size(), "pipes of {} and {} stages", pipe.size(),
                 device_of_[0].size());
    for (std::size_t s = 0; s < pipe.size(); ++s) {
      SLUICE_CHECK(pipe[s] >= 0 && pipe[s] < num_devices, "stage {} on device {} of {}", s, pipe[s],
                   num_devices);
      stages_of_[static_cast<std::size_t>(pipe[s])].push_back(static_cast<int>(s));
    }
  }
}

Placement Placement::linear(int num_devices) {
  Placement placement = looped(num_devices, 1);
  placement.kind_ = PlacementKind::linear;
  return placement;
}

Placement Placement::looped(int num_devices, int stages_per_device) {
  std::vector<int> device(static_cast<std::size_t>(num_devices * stages_per_device));
  for (std::size_t s = 0; s < device.size(); ++s)
    device[s] = static_cast<int>(s) % num_devices;
  return Placement(PlacementKind::looped, num_devices, {std::move(device)});
}

Placement Placement::vee(int num_devices, int stages_per_device) {
  std::vector<int> device(static_cast<std::size_t>(num_devices * stages_per_device));
  for (std::size_t s = 0; s < device.size(); ++s) {
    const int leg = static_cast<int>(s) / num_devices;
    const int step = static_cast<int>(s) % num_devices;
    device[s] = leg % 2 == 0 ? step : num_devices - 1 - step;
  }
  return Placement(PlacementKind::vee, num_devices, {std::move(device)});
}

Placement Placement::mirrored(int num_devices) {
  std::vector<int> down, up;
  for (int s = 0; s < num_devices; ++s) {
    down.push_back(s);
    up.push_back(num_devices - 1 - s);
  }
  return Placement(PlacementKind::mirrored, num_devices, {std::move(down), std::move(up)});
}

Placement Placement::custom(int num_devices, std::vector<std::vector<int>> device_of) {
  return Placement(PlacementKind::custom, num_devices, std::move(device_of));
}

std::vector<int> Placement::held_by(int device) const {
  std::vector<int> stages = stages_of(device);
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

int Placement::lowest_pipe(int device, int stage) const {
  for (int pipe = 0; pipe < num_pipes(); ++pipe)
    if (device_of(pipe, stage) == device) return pipe;
  return -1;
}

std::vector<int> Placement::holders_of(int stage) const {
  std::vector<int> devices;
  for (int pipe = 0; pipe < num_pipes(); ++pipe)
    if (const int device = device_of(pipe, stage);
        std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  return devices;
}

int Placement::stages_per_device() const {
  std::size_t most = 0;
  for (const auto& stages : stages_of_)
    most = std::max(most, stages.size());
  return static_cast<int>(most);
}

}  // namespace sluice
