// Which device holds which stage of which pipe.
#pragma once

#include <string_view>
#include <vector>

namespace sluice {

enum class PlacementKind { linear, looped, vee, mirrored, custom };

std::string_view placement_name(PlacementKind kind);  // "linear", "looped", "v", "mirrored", ...

class Placement {
 public:
  Placement() = default;

  // Stage s on device s.
  static Placement linear(int num_devices);
  // Stage s on device s mod p; v stages per device.
  static Placement looped(int num_devices, int stages_per_device);
  // Up the devices, then down, keeping the device at each turn. With v = 2 device d holds d,
  // 2p-1-d.
  static Placement vee(int num_devices, int stages_per_device);
  // Two pipes: stage s on device s in pipe 0 and on device p-1-s in pipe 1.
  static Placement mirrored(int num_devices);
  // device_of[pipe][stage]; every device number must be below num_devices.
  static Placement custom(int num_devices, std::vector<std::vector<int>> device_of);

  PlacementKind kind() const { return kind_; }
  int num_devices() const { return num_devices_; }
  int num_pipes() const { return static_cast<int>(device_of_.size()); }
  int num_stages() const { return device_of_.empty() ? 0 : static_cast<int>(device_of_[0].size()); }
  int device_of(int pipe, int stage) const {
    return device_of_[static_cast<std::size_t>(pipe)][static_cast<std::size_t>(stage)];
  }
  // The stages of a device, ascending; with several pipes, pipe by pipe.
  const std::vector<int>& stages_of(int device) const {
    return stages_of_[static_cast<std::size_t>(device)];
  }
  // The distinct stages of a device, ascending.
  std::vector<int> held_by(int device) const;
  // The lowest pipe that has the stage on the device; -1: none has.
  int lowest_pipe(int device, int stage) const;
  // The devices that hold a stage, in the order of their lowest pipes: the first is its owner.
  std::vector<int> holders_of(int stage) const;
  // The largest number of stages any device holds.
  int stages_per_device() const;

  friend bool operator==(const Placement& a, const Placement& b) {
    return a.num_devices_ == b.num_devices_ && a.device_of_ == b.device_of_;
  }

 private:
  Placement(PlacementKind kind, int num_devices, std::vector<std::vector<int>> device_of);

  PlacementKind kind_ = PlacementKind::custom;
  int num_devices_ = 0;
  std::vector<std::vector<int>> device_of_;
  std::vector<std::vector<int>> stages_of_;
};

}  // namespace sluice
