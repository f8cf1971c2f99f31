#include "runtime/files/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "runtime/files/file_system.h"

namespace sluice {
namespace {

// The shortest digits that read back as the same double.
std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_list(const std::vector<std::int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

enum class Line { keep, drop };

// What we cannot read stays, unless it is the unfinished last line: it may be the user's.
Line judge(std::string_view line, std::int64_t first_step) {
  if (line.empty() || line.back() != '\n') return Line::drop;
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    return Line::keep;
  return json["step"].get<std::int64_t>() >= first_step ? Line::drop : Line::keep;
}

// Calls `each` with every line, newline included; the last may lack it.
template <typename Each>
void for_each_line(const InputFile& file, Each each) {
  constexpr std::size_t kChunkBytes = 1 << 20;
  std::string pending;
  for (std::uint64_t at = 0; at < file.size();) {
    const std::size_t got = std::min<std::uint64_t>(kChunkBytes, file.size() - at);
    const std::size_t before = pending.size();
    pending.resize(before + got);
    file.read_at(at, std::as_writable_bytes(std::span(pending).subspan(before)));
    at += got;
    std::size_t begin = 0;
    for (std::size_t end = pending.find('\n', before); end != std::string::npos;
         end = pending.find('\n', begin)) {
      each(std::string_view(pending).substr(begin, end + 1 - begin));
      begin = end + 1;
    }
    pending.erase(0, begin);
  }
  if (!pending.empty()) each(std::string_view(pending));
}

void drop_lines(FileSystem& files, const std::string& path, std::int64_t first_step) {
  const InputFile file(path);
  bool any = false;
  for_each_line(file,
                [&](std::string_view line) { any = any || judge(line, first_step) == Line::drop; });
  if (!any) return;
  AtomicFile rewritten(files, path);
  for_each_line(file, [&](std::string_view line) {
    if (judge(line, first_step) == Line::keep) rewritten.write(line);
  });
  rewritten.commit();
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  std::string line = fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"lr":{},"tokens":{},"step_time_s":{},"tps":{},)"
      R"("tflops":{},"mfu":{},"bubble":{},"peak_stash_bytes":{},"predicted_peak_stash_bytes":{})",
      metrics.step, json_number(metrics.loss), json_number(metrics.grad_norm),
      json_number(metrics.lr), metrics.tokens, json_number(metrics.step_time_s),
      json_number(metrics.tps), json_number(metrics.tflops),
      metrics.mfu ? json_number(*metrics.mfu) : "null", json_number(metrics.bubble),
      json_list(metrics.peak_stash_bytes), json_list(metrics.predicted_peak_stash_bytes));
  if (metrics.validation_loss)
    line += fmt::format(R"(,"validation_loss":{})", json_number(*metrics.validation_loss));
  return line + "}\n";
}

MetricsLog::MetricsLog(FileSystem& files, const std::string& path, std::int64_t first_step) {
  make_folders(files, parent_folder(path));
  if (is_there(path)) drop_lines(files, path, first_step);
  file_ = std::make_unique<AppendFile>(files, path, AppendFile::Existing::append);
}

void MetricsLog::append(const StepMetrics& metrics) { file_->append(metrics_line(metrics)); }

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
