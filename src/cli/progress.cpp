#include "sluice/cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "sluice/base/say.h"
#include "sluice/base/text.h"

namespace sluice::cli {
namespace {

constexpr int kBoxes = 24, kMinBoxes = 8;

bool can_rewrite_lines() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// 0:07, 12:30, 3:05:00
std::string clock_text(double seconds) {
  const auto all = static_cast<std::int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  const std::int64_t hours = all / 3600, minutes = all / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, all % 60)
                   : fmt::format("{}:{:02}", minutes, all % 60);
}

}  // namespace

Progress::Progress(const Config& config)
    : config_(config), has_bar_(config.metrics.progress && can_rewrite_lines()) {}

Progress::~Progress() { erase_bar(); }

void Progress::step(const StepMetrics& metrics, bool logged) {
  erase_bar();
  if (logged) print_line(metrics);

  // Saving and validating count too: the pace is that of the wall clock, from the second step on.
  const auto now = std::chrono::steady_clock::now();
  double pace = metrics.step_time_s;
  if (num_done_ == 0)
    started_ = now;
  else
    pace = std::chrono::duration<double>(now - started_).count() / static_cast<double>(num_done_);
  ++num_done_;
  const std::int64_t steps_left = config_.training.steps - metrics.step;
  bar_.reset();
  if (steps_left > 0) bar_ = {metrics, pace * static_cast<double>(steps_left)};
  draw_bar();
}

void Progress::print_line(const StepMetrics& metrics) const {
  StepLine line;
  line.step = metrics.step;
  line.loss = metrics.loss;
  line.grad_norm = metrics.grad_norm;
  line.memory_gib = static_cast<double>(metrics.memory_bytes) / (1 << 30);
  line.memory_percent = 100 * metrics.memory_share;
  line.tps = metrics.tps;
  line.tflops = metrics.tflops;
  if (metrics.mfu) line.mfu_percent = 100 * *metrics.mfu;
  line.bubble_percent = 100 * metrics.bubble;
  std::string text = step_line(line);
  if (metrics.validation_loss)
    text += fmt::format("  validation: {:8.5f}", *metrics.validation_loss);
  std::puts(text.c_str());
  std::fflush(stdout);
}

void Progress::note(const std::string& text) {
  erase_bar();
  say("sluice: {}\n", text);
  draw_bar();
}

void Progress::erase_bar() {
  if (has_bar_ && bar_) say("\r\x1b[K");
}

void Progress::draw_bar() {
  // The cursor goes back to the start: whoever else writes to the terminal writes over the bar.
  if (has_bar_ && bar_) say("{}\r", bar_line(*bar_, terminal_columns() - 1));
}

std::string Progress::bar_line(const Bar& bar, int columns) const {
  const std::int64_t steps = config_.training.steps;
  const double share = static_cast<double>(bar.last.step) / static_cast<double>(steps);
  std::string line =
      fmt::format("{}/{}  {:.0f}%  loss {:.4f}  tps {}  {} left", bar.last.step, steps,
                  std::floor(100 * share), bar.last.loss,
                  with_commas(fmt::format("{:.0f}", bar.last.tps)), clock_text(bar.seconds_left));
  const int room = columns - static_cast<int>(line.size()) - 4;
  if (const int boxes = std::min(kBoxes, room); boxes >= kMinBoxes) {
    const int full = static_cast<int>(share * boxes);
    line = fmt::format("[{:#<{}}{:-<{}}]  {}", "", full, "", boxes - full, line);
  }
  return line.substr(0, static_cast<std::size_t>(std::max(0, columns)));
}

}  // namespace sluice::cli
