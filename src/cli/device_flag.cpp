#include "sluice/cli/device_flag.h"

#include "sluice/base/error.h"
#include "sluice/runtime/out_of_memory.h"
#include "sluice/runtime/rank_device.h"

namespace sluice::cli {

void DeviceFlag::add(CLI::App& app) {
  app.add_option("--device", name, "where the model computes: cpu (default) or cuda")
      ->type_name("DEVICE");
}

void DeviceFlag::run(const std::function<void(at::Device)>& work) const {
  if (name != "cpu" && name != "cuda")
    throw user_error("--device is '{}': needs cpu or cuda", name);
  if (name == "cuda") require_gpu("--device", "--device cpu");
  const at::Device device = name == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  try {
    work(device);
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    if (device.is_cpu())
      throw UserError("out of memory: the model does not fit into this machine",
                      ExitCode::temporary);
    const cuda::MemoryUse use = cuda::memory_use(device.index());
    constexpr double kGibibyte = 1 << 30;
    throw UserError(
        fmt::format("out of GPU memory: the model and its activations took {:.1f} GiB of "
                    "{:.1f}; use --device cpu",
                    static_cast<double>(use.peak) / kGibibyte,
                    static_cast<double>(use.total) / kGibibyte),
        ExitCode::temporary);
  }
}

}  // namespace sluice::cli
