#include "runtime/files/metrics_folder.h"

#include <unistd.h>

#include <array>
#include <chrono>

namespace sluice {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

MetricsFolder::MetricsFolder(FileSystem& files, const std::string& folder, std::int64_t first_step)
    : log_(files, folder + "/metrics.jsonl", first_step),
      events_(files, folder, host_name(), wall_time(), first_step) {}

void MetricsFolder::append(const StepMetrics& metrics) {
  log_.append(metrics);
  std::vector<Scalar> scalars = {{"loss", metrics.loss},     {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},         {"tps", metrics.tps},
                                 {"tflops", metrics.tflops}, {"bubble", metrics.bubble}};
  if (metrics.mfu) scalars.push_back({"mfu", *metrics.mfu});
  if (metrics.validation_loss) scalars.push_back({"validation_loss", *metrics.validation_loss});
  events_.append(wall_time(), metrics.step, scalars);
}

}  // namespace sluice
