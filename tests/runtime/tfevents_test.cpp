#include "sluice/runtime/files/tfevents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "sluice/runtime/files/metrics_folder.h"
#include "support/event_files.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

const std::string kFirst =
    "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
const std::string kLoss =
    "1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f73731500002040c2dfec60";

TEST(Tfevents, ChecksumsAreCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Tfevents, RecordsAreTheGoldenBytes) {
  EXPECT_EQ(hex(tfevents_first_record(1.0)), kFirst);
  EXPECT_EQ(hex(tfevents_scalar_record(2.0, 7, "loss", 2.5F)), kLoss);
}

TEST(Tfevents, LargeStepsAreVarints) {
  // 300 = 0xAC 0x02.
  EXPECT_NE(hex(tfevents_scalar_record(2.0, 300, "loss", 2.5F)).find("0000004010ac022a0d"),
            std::string::npos);
  EXPECT_EQ(tfevents_scalar_record(2.0, 0, "loss", 2.5F).size(), 40U);
}

TEST(Tfevents, FileGrowsByWholeStepsAndIsNeverContinued) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string folder = scratch.path() + "/metrics/tb";
  TfeventsWriter writer(files, folder, "host", 1.0, 7);
  EXPECT_EQ(writer.path(), folder + "/events.out.tfevents.1.host");
  const std::string start = kFirst + hex(tfevents_start_record(1.0, 7));
  EXPECT_EQ(hex(read_text(writer.path())), start);
  const std::vector<Scalar> scalars = {{"loss", 2.5}, {"loss", 2.5}};
  writer.append(2.0, 7, scalars);
  EXPECT_EQ(hex(read_text(writer.path())), start + kLoss + kLoss);
  const TfeventsWriter second(files, folder, "host", 1.5, 8);
  EXPECT_EQ(second.path(), folder + "/events.out.tfevents.1.host.1");
}

TEST(Tfevents, AnIndependentReaderReadsThemBack) {
  const std::vector<Event> events =
      read_events(tfevents_first_record(1.5) + tfevents_start_record(2.5, 300) +
                  tfevents_scalar_record(3.5, 1'000'000, "loss", 0.25F));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_TRUE(events[1].starts_run);
  EXPECT_EQ(events[1].step, 300);
  EXPECT_EQ(events[2].wall_time, 3.5);
  EXPECT_EQ(events[2].step, 1'000'000);
  EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{{"loss", 0.25F}}));
}

TEST(MetricsFolder, AResumedRunTakesBackTheStepsItRepeats) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const auto run = [&](std::int64_t first, std::int64_t last, double loss) {
    MetricsFolder folder(files, {scratch.path(), "one", first});
    EXPECT_EQ(folder.folder(), scratch.path());
    for (std::int64_t step = first; step <= last; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.loss = loss;
      if (step == 4) metrics.validation_loss = 9;
      if (step == 5) metrics.mfu = 0.5;
      folder.append(metrics);
    }
  };
  run(1, 5, 1);
  run(4, 6, 2);
  run(6, 6, 3);
  const auto shown = read_event_folder(scratch.path());
  EXPECT_EQ(shown.at("loss"),
            (std::map<std::int64_t, float>{{1, 1}, {2, 1}, {3, 1}, {4, 2}, {5, 2}, {6, 3}}));
  EXPECT_EQ(shown.at("validation_loss"), (std::map<std::int64_t, float>{{4, 9}}));
  EXPECT_EQ(shown.at("mfu"), (std::map<std::int64_t, float>{{5, 0.5F}}));
  for (const char* tag : {"grad_norm", "lr", "tps", "tflops", "bubble", "memory_bytes"})
    EXPECT_EQ(shown.at(tag).size(), 6U) << tag;
  const std::string rows = read_text(scratch.path() + "/metrics.jsonl");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 6);
}

TEST(MetricsFolder, EveryRunHasItsOwnFilesAndFindsThemAgain) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string base = scratch.path() + "/metrics", other = base + "/run-two";
  const auto run = [&](const char* name, std::int64_t first, std::int64_t last) {
    MetricsFolder folder(files, {base, name, first});
    for (StepMetrics metrics; first <= last; ++first) {
      metrics.step = first;
      folder.append(metrics);
    }
    return folder.folder();
  };
  const auto num_rows = [](const std::string& folder) {
    const std::string rows = read_text(folder + "/metrics.jsonl");
    return std::count(rows.begin(), rows.end(), '\n');
  };
  EXPECT_EQ(run("one", 1, 40), base);
  EXPECT_EQ(run("two", 1, 5), other);
  EXPECT_EQ(run("one", 31, 35), base);
  EXPECT_EQ(run("two", 4, 9), other);
  EXPECT_EQ(num_rows(base), 35);
  EXPECT_EQ(num_rows(other), 9);
  EXPECT_EQ(read_event_folder(base).at("loss").size(), 35U);
  EXPECT_EQ(read_event_folder(other).at("loss").size(), 9U);
  // Also when what made it move away is gone.
  std::filesystem::remove(base + "/metrics.jsonl");
  EXPECT_EQ(run("two", 10, 12), other);
  EXPECT_EQ(num_rows(other), 12);
}

TEST(MetricsFolder, RunsAtTheSameTimeDoNotMix) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  MetricsFolder one(files, {scratch.path(), "one", 1}), two(files, {scratch.path(), "two", 1});
  EXPECT_EQ(one.folder(), scratch.path());
  EXPECT_EQ(two.folder(), scratch.path() + "/run-two");
  // The same run twice, as after copying its checkpoints: the second has no file left.
  const MetricsFolder again(files, {scratch.path(), "one", 1});
  EXPECT_EQ(again.folder(), scratch.path() + "/run-one");
  EXPECT_THROW(MetricsFolder(files, {scratch.path(), "one", 1}), UserError);
}

}  // namespace
}  // namespace sluice::test
