#include "sluice/runtime/files/metrics_log.h"

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

std::string rows(std::int64_t begin, std::int64_t end, const std::string& run = "one") {
  std::string text;
  for (std::int64_t step = begin; step < end; ++step)
    text += metrics_line(at_step(step), run);
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
  metrics.time = 1794808006.6931;
  metrics.memory_bytes = 123456789012;
  EXPECT_EQ(metrics_line(metrics, "1a2b3c4d"),
            R"({"run":"1a2b3c4d","step":1,"time":1794808006.693,"loss":4.5,"grad_norm":0.1,)"
            R"("lr":0.0003,"tokens":4096,"step_time_s":0.25,"tps":16384,"tflops":1.5,"mfu":null,)"
            R"("bubble":0.125,"memory_bytes":123456789012,"peak_stash_bytes":[10,20],)"
            R"("predicted_peak_stash_bytes":[10,20]})"
            "\n");
  metrics.mfu = 0.375;
  EXPECT_NE(metrics_line(metrics, "one").find(R"("tflops":1.5,"mfu":0.375,)"), std::string::npos);
  metrics.validation_loss = 4.25;
  EXPECT_TRUE(metrics_line(metrics, "one").ends_with(",\"validation_loss\":4.25}\n"));
  metrics.loss = std::nan("");
  metrics.grad_norm = INFINITY;
  const auto json = nlohmann::json::parse(metrics_line(metrics, "one"));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST(MetricsLog, LossReadsBackBitForBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    StepMetrics metrics;
    metrics.loss = std::bit_cast<double>(random());
    if (!std::isfinite(metrics.loss)) continue;
    const auto json = nlohmann::json::parse(metrics_line(metrics, "one"));
    EXPECT_EQ(json["loss"].get<double>(), metrics.loss);
  }
}

TEST(MetricsLog, ResumedRunDropsTheRowsItWillWriteAgain) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.path() + "/metrics/metrics.jsonl";
  {
    const auto log = MetricsLog::claim(files, path, "one", 1);
    for (int step = 1; step < 8; ++step)
      log->append(at_step(step));
  }
  EXPECT_EQ(read_text(path), rows(1, 8));
  const auto log = MetricsLog::claim(files, path, "one", 5);
  EXPECT_EQ(read_text(path), rows(1, 5));
  log->append(at_step(5));
  EXPECT_EQ(read_text(path), rows(1, 6));
}

TEST(MetricsLog, UnfinishedLastLineIsDroppedAndLinesThatAreNoRowsStay) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string note = "# a note of the user's\n\n[1]\n{\"step\":\"x\"}\n";
  const std::string path =
      scratch.write("m.jsonl", rows(1, 3) + note + rows(3, 4) + R"({"step":4,"lo)");
  EXPECT_TRUE(MetricsLog::claim(files, path, "one", 10));
  EXPECT_EQ(read_text(path), rows(1, 3) + note + rows(3, 4));
  scratch.write("m.jsonl", rows(1, 5) + note + rows(5, 7) + note);
  EXPECT_TRUE(MetricsLog::claim(files, path, "one", 4));
  EXPECT_EQ(read_text(path), rows(1, 4) + note + note);
}

TEST(MetricsLog, AnotherRunsFileIsLeftAsItIs) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  for (const std::string& before :
       {rows(1, 5, "two"), rows(1, 3) + rows(3, 5, "two"), rows(1, 5, "two") + "{\"step\":4",
        std::string("{\"step\":1,\"loss\":2}\n"),  // of a version whose rows named no run
        std::string("{\"step\":1,\"run\":1}\n")}) {
    const std::string path = scratch.write("m.jsonl", before);
    EXPECT_FALSE(MetricsLog::claim(files, path, "one", 1)) << before;
    EXPECT_EQ(read_text(path), before);
  }
}

TEST(MetricsLog, AFileThatAnotherRunIsWritingIsLeftAsItIs) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.path() + "/m.jsonl";
  auto first = MetricsLog::claim(files, path, "one", 1);
  ASSERT_TRUE(first);
  EXPECT_FALSE(MetricsLog::claim(files, path, "one", 1));  // no row tells whose it is
  first->append(at_step(1));
  first->append(at_step(2));
  EXPECT_FALSE(MetricsLog::claim(files, path, "one", 1));
  EXPECT_EQ(read_text(path), rows(1, 3));
  first.reset();
  EXPECT_TRUE(MetricsLog::claim(files, path, "one", 2));
  EXPECT_EQ(read_text(path), rows(1, 2));
}

TEST(MetricsLog, ASymbolicLinkIsNotFollowed) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string target = scratch.write("precious", rows(1, 5));
  const std::string path = scratch.path() + "/m.jsonl";
  std::filesystem::create_symlink(target, path);
  try {
    MetricsLog::claim(files, path, "one", 1);
    FAIL() << "followed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("m.jsonl is a symbolic link"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(read_text(target), rows(1, 5));
}

TEST(MetricsLog, LinesAcrossReadingBoundariesStayWhole) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string long_line =
      R"({"run":"one","step":2,"text":")" + std::string(3'000'000, 'x') + "\"}\n";
  const std::string path = scratch.write("m.jsonl", rows(1, 9000) + long_line + rows(9000, 9100));
  EXPECT_TRUE(MetricsLog::claim(files, path, "one", 9000));
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
      MetricsLog::claim(files, path, "one", 5);
      break;
    } catch (const Killed&) {
      ++crashes;
      const std::string text = read_text(path);
      EXPECT_TRUE(text == rows(1, 8) || text == rows(1, 5)) << text;
    }
  }
  EXPECT_EQ(crashes, 2);  // at the open and at the cut
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
