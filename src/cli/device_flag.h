// --device cpu|cuda of the commands that load a whole model.
#pragma once

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace sluice::cli {

struct DeviceFlag {
  std::string name = "cpu";

  void add(CLI::App& app);
  // Calls `work` with the device. Throws UserError for a name that is none, where there is no GPU,
  // and where its memory is full.
  void run(const std::function<void(at::Device)>& work) const;
};

}  // namespace sluice::cli
