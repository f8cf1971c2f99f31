#include "sluice/runtime/files/metrics_log.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "sluice/runtime/files/continued_lines.h"
#include "sluice/runtime/files/file_system.h"

namespace sluice {
namespace {

// The shortest digits that read back as the same double.
std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_list(const std::vector<std::int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

LineFate judge(std::string_view line, const std::string& run, std::int64_t first_step) {
  const std::optional<std::int64_t> step = step_of_line(line);
  if (!step) return LineFate::keep;
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.contains("run") || json["run"] != run) return LineFate::foreign;
  return *step >= first_step ? LineFate::drop : LineFate::keep;
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics, const std::string& run) {
  std::string line = fmt::format(
      R"({{"run":{},"step":{},"time":{:.3f},"loss":{},"grad_norm":{},"lr":{},"tokens":{},)"
      R"("step_time_s":{},"tps":{},"tflops":{},"mfu":{},"bubble":{},"memory_bytes":{},)"
      R"("peak_stash_bytes":{},"predicted_peak_stash_bytes":{})",
      json_quote(run), metrics.step, metrics.time, json_number(metrics.loss),
      json_number(metrics.grad_norm), json_number(metrics.lr), metrics.tokens,
      json_number(metrics.step_time_s), json_number(metrics.tps), json_number(metrics.tflops),
      metrics.mfu ? json_number(*metrics.mfu) : "null", json_number(metrics.bubble),
      metrics.memory_bytes, json_list(metrics.peak_stash_bytes),
      json_list(metrics.predicted_peak_stash_bytes));
  if (const auto& shared = metrics.shared) {
    line += fmt::format(R"(,"all_to_all_s":{},"padded_tokens":{})",
                        json_number(shared->all_to_all_s), shared->padded_tokens);
    if (const auto& planned = shared->planned)
      line += fmt::format(R"(,"predicted_s":{},"plan_ms":{},"plan_wait_s":{})",
                          json_number(planned->predicted_s), json_number(planned->plan_ms),
                          json_number(planned->plan_wait_s));
  }
  if (const auto& staleness = metrics.staleness)
    line += fmt::format(R"(,"mismatch":{},"max_delay":{},"gradients_counted":{})",
                        json_list(staleness->mismatch), staleness->max_delay,
                        staleness->gradients_counted);
  if (metrics.validation_loss)
    line += fmt::format(R"(,"validation_loss":{})", json_number(*metrics.validation_loss));
  return line + "}\n";
}

std::unique_ptr<MetricsLog> MetricsLog::claim(FileSystem& files, const std::string& path,
                                              const std::string& run, std::int64_t first_step) {
  make_folders(files, parent_folder(path));
  auto file = std::make_unique<AppendFile>(files, path, AppendFile::Existing::append);
  if (!file->try_lock()) return nullptr;
  const auto fate = [&](std::string_view line) { return judge(line, run, first_step); };
  if (!continue_lines(*file, path, fate)) return nullptr;
  return std::unique_ptr<MetricsLog>(new MetricsLog(std::move(file), run));
}

MetricsLog::MetricsLog(std::unique_ptr<AppendFile> file, std::string run)
    : file_(std::move(file)), run_(std::move(run)) {}

void MetricsLog::append(const StepMetrics& metrics) { file_->append(metrics_line(metrics, run_)); }

std::string step_line(const StepLine& line) {
  return fmt::format(
      "step: {:2}  loss: {:8.5f}  grad_norm: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {}  "
      "tflops: {}  mfu: {}  bubble: {:.2f}%",
      line.step, line.loss, line.grad_norm, line.memory_gib, line.memory_percent,
      with_commas(fmt::format("{:.0f}", line.tps)),
      // A CPU has less than one.
      with_commas(fmt::format("{:.{}f}", line.tflops, line.tflops < 1 ? 4 : 2)),
      line.mfu_percent ? fmt::format("{:.2f}%", *line.mfu_percent) : "N/A", line.bubble_percent);
}

}  // namespace sluice
