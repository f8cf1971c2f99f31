#include "sluice/runtime/files/metrics_folder.h"

#include <unistd.h>

#include <array>
#include <chrono>

#include "sluice/runtime/files/continued_lines.h"

namespace sluice {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Steps from `first_step` on are planned again, so that the file holds each step once.
std::unique_ptr<AppendFile> continued_plans(FileSystem& files, const std::string& path,
                                            std::int64_t first_step) {
  auto file = std::make_unique<AppendFile>(files, path, AppendFile::Existing::append);
  continue_lines(*file, path, [&](std::string_view line) {
    const std::optional<std::int64_t> step = step_of_line(line);
    return step && *step >= first_step ? LineFate::drop : LineFate::keep;
  });
  return file;
}

}  // namespace

MetricsFolder::MetricsFolder(FileSystem& files, const MetricsFolderOptions& options) {
  const auto claim = [&](const std::string& folder) {
    folder_ = folder;
    log_ = MetricsLog::claim(files, folder + "/metrics.jsonl", options.run, options.first_step);
    return log_ != nullptr;
  };
  const std::string own = fmt::format("{}/run-{}", options.folder, options.run);
  if ((is_there(own) || !claim(options.folder)) && !claim(own))
    throw UserError(fmt::format("{}/metrics.jsonl is in use by another process, or holds rows of "
                                "another run: name another metrics.folder",
                                own),
                    ExitCode::temporary);
  if (options.plans) plans_ = continued_plans(files, folder_ + "/plans.jsonl", options.first_step);
  events_.emplace(files, folder_, host_name(), wall_time(), options.first_step);
}

void MetricsFolder::append_plan(const std::string& line) { plans_->append(line + "\n"); }

void MetricsFolder::append(const StepMetrics& metrics) {
  log_->append(metrics);
  std::vector<Scalar> scalars = {{"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tps", metrics.tps},
                                 {"tflops", metrics.tflops},
                                 {"bubble", metrics.bubble},
                                 {"memory_bytes", static_cast<double>(metrics.memory_bytes)}};
  if (metrics.mfu) scalars.push_back({"mfu", *metrics.mfu});
  if (metrics.validation_loss) scalars.push_back({"validation_loss", *metrics.validation_loss});
  events_->append(metrics.time, metrics.step, scalars);
}

}  // namespace sluice
