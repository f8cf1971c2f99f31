#include "sluice/runtime/files/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
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

// What becomes of a line. What we cannot read is kept: it may be the user's.
enum class Line { keep, drop, foreign };

Line judge(std::string_view line, const std::string& run, std::int64_t first_step) {
  if (line.empty() || line.back() != '\n') return Line::drop;  // left unfinished by a killed run
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    return Line::keep;
  if (!json.contains("run") || json["run"] != run) return Line::foreign;
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

// What a file that is continued consists of: its beginning, lines to drop, and what is kept after
// the first of those.
struct Found {
  bool foreign = false;
  std::uint64_t beginning_bytes = 0;
  bool drops = false;
  std::string rest;
};

Found look_into(const std::string& path, const std::string& run, std::int64_t first_step) {
  Found found;
  for_each_line(InputFile(path, Symlinks::refuse), [&](std::string_view line) {
    switch (judge(line, run, first_step)) {
      case Line::foreign: found.foreign = true; break;
      case Line::drop: found.drops = true; break;
      case Line::keep:
        if (found.drops)
          found.rest += line;
        else
          found.beginning_bytes += line.size();
        break;
    }
  });
  return found;
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
  if (metrics.validation_loss)
    line += fmt::format(R"(,"validation_loss":{})", json_number(*metrics.validation_loss));
  return line + "}\n";
}

std::unique_ptr<MetricsLog> MetricsLog::claim(FileSystem& files, const std::string& path,
                                              const std::string& run, std::int64_t first_step) {
  make_folders(files, parent_folder(path));
  auto file = std::make_unique<AppendFile>(files, path, AppendFile::Existing::append);
  if (!file->try_lock()) return nullptr;
  const Found found = look_into(path, run, first_step);
  if (found.foreign) return nullptr;
  // Cut in place: a new file of that name would not be the one that is locked.
  if (found.drops) {
    file->cut(found.beginning_bytes);
    if (!found.rest.empty()) file->append(found.rest);
  }
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
