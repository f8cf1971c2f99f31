#include "runtime/files/metrics_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/faulty_file_system.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

StepMetrics at_step(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 1.0 / static_cast<double>(step + 3);
  metrics.tokens = 4096;
  metrics.peak_stash_bytes = {10, 20};
  metrics.predicted_peak_stash_bytes = {10, 20};
  return metrics;
}

std::string rows(std::int64_t begin, std::int64_t end) {
  std::string text;
  for (std::int64_t step = begin; step < end; ++step)
    text += metrics_line(at_step(step));
  return text;
}

TEST(MetricsLog, LineHasTheContractsKeys) {
  StepMetrics metrics = at_step(1);
  metrics.loss = 4.5;
  metrics.grad_norm = 0.1;
  metrics.lr = 3e-4;
  metrics.step_time_s = 0.25;
  metrics.tps = 16384;
  metrics.tflops = 1.5;
  metrics.bubble = 0.125;
  EXPECT_EQ(metrics_line(metrics),
            R"({"step":1,"loss":4.5,"grad_norm":0.1,"lr":0.0003,"tokens":4096,"step_time_s":0.25,)"
            R"("tps":16384,"tflops":1.5,"mfu":null,"bubble":0.125,"peak_stash_bytes":[10,20],)"
            R"("predicted_peak_stash_bytes":[10,20]})"
            "\n");
  metrics.mfu = 0.375;
  EXPECT_NE(metrics_line(metrics).find(R"("tflops":1.5,"mfu":0.375,)"), std::string::npos);
  metrics.validation_loss = 4.25;
  EXPECT_TRUE(metrics_line(metrics).ends_with(",\"validation_loss\":4.25}\n"));
  metrics.loss = std::nan("");
  metrics.grad_norm = INFINITY;
  const auto json = nlohmann::json::parse(metrics_line(metrics));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST(MetricsLog, LossReadsBackBitForBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    StepMetrics metrics;
    metrics.loss = std::bit_cast<double>(random());
    if (!std::isfinite(metrics.loss)) continue;
    const auto json = nlohmann::json::parse(metrics_line(metrics));
    EXPECT_EQ(json["loss"].get<double>(), metrics.loss);
  }
}

TEST(MetricsLog, ResumedRunDropsTheRowsItWillWriteAgain) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.path() + "/metrics/metrics.jsonl";
  {
    MetricsLog log(files, path, 1);
    for (int step = 1; step < 8; ++step)
      log.append(at_step(step));
  }
  EXPECT_EQ(read_text(path), rows(1, 8));
  MetricsLog log(files, path, 5);
  EXPECT_EQ(read_text(path), rows(1, 5));
  log.append(at_step(5));
  EXPECT_EQ(read_text(path), rows(1, 6));
}

TEST(MetricsLog, UnfinishedLastLineIsDroppedAndForeignLinesStay) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string note = "# a note of the user's\n\n[1]\n{\"step\":\"x\"}\n";
  const std::string path =
      scratch.write("m.jsonl", rows(1, 3) + note + rows(3, 4) + R"({"step":4,"lo)");
  const MetricsLog log(files, path, 10);
  EXPECT_EQ(read_text(path), rows(1, 3) + note + rows(3, 4));
}

TEST(MetricsLog, LinesAcrossReadingBoundariesStayWhole) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string long_line = "{\"step\":2,\"text\":\"" + std::string(3'000'000, 'x') + "\"}\n";
  const std::string path = scratch.write("m.jsonl", rows(1, 9000) + long_line + rows(9000, 9100));
  const MetricsLog log(files, path, 9000);
  EXPECT_TRUE(read_text(path) == rows(1, 9000) + long_line);
}

TEST(MetricsLog, CrashWhileDroppingRowsLosesNone) {
  const TemporaryFolder scratch;
  const std::string folder = scratch.path() + "/run", path = folder + "/m.jsonl";
  std::filesystem::create_directory(folder);
  int crashes = 0;
  for (int at = 1;; ++at) {
    scratch.write("run/m.jsonl", rows(1, 8));
    FaultyFileSystem files(folder, Fault::power_cut, at);
    try {
      const MetricsLog log(files, path, 5);
      break;
    } catch (const Killed&) {
      ++crashes;
      const std::string text = read_text(path);
      EXPECT_TRUE(text == rows(1, 8) || text == rows(1, 5)) << text;
    }
  }
  EXPECT_GT(crashes, 6);
}

TEST(StepLine, IsTorchtitansWithBubble) {
  StepLine line;
  line.step = 120;
  line.loss = 4.3125;
  line.grad_norm = 0.9123;
  line.memory_gib = 12.31;
  line.memory_percent = 8.86;
  line.tps = 41203;
  line.tflops = 312.4;
  line.mfu_percent = 39.5;
  line.bubble_percent = 12.5;
  EXPECT_EQ(step_line(line),
            "step: 120  loss:  4.31250  grad_norm:  0.9123  memory: 12.31GiB(8.86%)  tps: 41,203  "
            "tflops: 312.40  mfu: 39.50%  bubble: 12.50%");
  line.step = 1;
  line.loss = 10.97;
  line.memory_gib = 0.5;
  line.tps = 999.6;
  line.tflops = 1234567.891;
  line.mfu_percent.reset();
  EXPECT_EQ(step_line(line),
            "step:  1  loss: 10.97000  grad_norm:  0.9123  memory:  0.50GiB(8.86%)  tps: 1,000  "
            "tflops: 1,234,567.89  mfu: N/A  bubble: 12.50%");
  line.tps = 999;
  EXPECT_NE(step_line(line).find("tps: 999  "), std::string::npos);
  line.tflops = 0.00439;
  EXPECT_NE(step_line(line).find("tflops: 0.0044  "), std::string::npos);
  line.tps = 123456;
  EXPECT_NE(step_line(line).find("tps: 123,456  "), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
