// What sluice train leaves in metrics.folder: rows of metrics.jsonl and TensorBoard's event files,
// of one run and of several.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/event_files.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

class TrainMetrics : public test::TinyRun {
 protected:
  std::string text(const std::string& folder = "metrics") const {
    return test::read_text(fmt::format("{}/{}/metrics.jsonl", folder_.path(), folder));
  }
  std::vector<Json> rows(const std::string& folder = "metrics") const {
    std::vector<Json> out;
    const std::string all = text(folder);
    for (const std::string_view line : split(all, '\n'))
      if (!line.empty()) out.push_back(Json::parse(line));
    return out;
  }
  std::vector<int> steps(const std::string& folder = "metrics") const {
    std::vector<int> out;
    for (const Json& row : rows(folder))
      out.push_back(row["step"]);
    return out;
  }
};

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TEST_F(TrainMetrics, TensorBoardGetsEveryStepOnceAcrossAResume) {
  ASSERT_EQ(train("--training.steps=5").code, 0);
  // Step 5 is saved at the end; without it the run goes on from step 4.
  std::filesystem::remove_all(folder_.path() + "/checkpoints/step-00000005");
  folder_.write("checkpoints/LATEST", "step-00000004\n");
  const Ran resumed = train("--training.steps=6");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  // Both hold the same steps and, but for the digits, the same values.
  std::map<std::string, std::map<std::int64_t, float>> written;
  for (const Json& row : rows())
    for (const char* tag :
         {"loss", "grad_norm", "lr", "tps", "tflops", "bubble", "memory_bytes", "validation_loss"})
      if (row.contains(tag)) written[tag][row["step"]] = row[tag].get<float>();
  EXPECT_EQ(written.at("loss").size(), 6u);
  EXPECT_TRUE(written.at("validation_loss").contains(6));
  EXPECT_EQ(test::read_event_folder(folder_.path() + "/metrics"), written);
}

// Freed tensors once left holes that were too small for the next ones of their size: from step 150
// on, this run grew by 0.2 MB a step.
TEST_F(TrainMetrics, TheMemoryOfALongRunStaysWhatItWasEarly) {
  const Ran ran = train(
      "--model.layers=2 --model.dim=64 --model.heads=2 --training.steps=320 "
      "--training.sequence_length=16 --training.global_batch_size=128 "
      "--parallelism.num_microbatches=2 --parallelism.pipeline_parallel_schedule=1f1b "
      "--validation.interval=0 --checkpoint.folder=");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::vector<Json> all = rows();
  ASSERT_EQ(all.size(), 320u);
  const auto early = all[99]["memory_bytes"].get<std::int64_t>();
  const auto late = all[319]["memory_bytes"].get<std::int64_t>();
  // Both ranks may have their peaks at the same moment for the first time in a late step.
  EXPECT_LE(late, early + (std::int64_t{6} << 20));
}

TEST_F(TrainMetrics, AnotherRunsMetricsStayAndEachRunFindsItsOwn) {
  const std::string other = "--checkpoint.folder=other ";
  ASSERT_EQ(train().code, 0);
  const std::string first = text();
  const Ran second = train(other + "--training.steps=3");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("sluice: metrics holds the metrics of another run; this run writes its "
                            "own to metrics/run-"),
            std::string::npos)
      << second.err;
  EXPECT_EQ(text(), first);
  ASSERT_EQ(train(other + "--training.steps=5").code, 0);  // goes on with its own file
  ASSERT_EQ(train("--training.steps=14").code, 0);         // so does the first
  EXPECT_TRUE(text().starts_with(first));
  EXPECT_EQ(steps().size(), 14u);
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/metrics"))
    if (entry.is_directory()) folders.push_back("metrics/" + entry.path().filename().string());
  ASSERT_EQ(folders.size(), 1u);
  EXPECT_EQ(steps(folders[0]), (std::vector<int>{1, 2, 3, 4, 5}));
  // A start from the weights of the first run is a run of its own.
  const std::string before = text();
  ASSERT_EQ(train("--checkpoint.load=checkpoints/step-00000012 --checkpoint.folder=third "
                  "--training.steps=13")
                .code,
            0);
  EXPECT_EQ(text(), before);
}

// The first run is held while the second one runs: its standard output is a pipe that is full.
TEST_F(TrainMetrics, RunsAtTheSameTimeDoNotMix) {
  const Ran both = test::run_shell(
      fmt::format("mkfifo pipe; exec 3<>pipe; "
                  "dd if=/dev/zero of=pipe bs=4096 oflag=nonblock 2>/dev/null\n"
                  "'{0}' train run.toml >pipe 2>err 3>&- & pid=$!\n"
                  "while [ ! -s metrics/metrics.jsonl ] && kill -0 $pid; do sleep 0.02; done\n"
                  "'{0}' train run.toml --checkpoint.folder=other >out; code=$?\n"
                  "cat pipe >/dev/null & exec 3>&-; wait $pid || exit 1; exit $code",
                  SLUICE_ENGINE_BINARY),
      folder_.path());
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_NE(both.err.find("metrics/run-"), std::string::npos) << both.err;
  EXPECT_EQ(steps(), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  for (const Json& row : rows())
    EXPECT_EQ(row["run"], rows()[0]["run"]);
}

TEST_F(TrainMetrics, LogFreqSkipsLinesButNotTheFirstTheLastAndValidations) {
  const Ran ran = train(
      "--training.steps=11 --metrics.log_freq=3 --checkpoint.folder= --validation.interval=4");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::vector<int> logged = {1, 3, 4, 6, 8, 9, 11};
  EXPECT_EQ(steps(), logged);
  std::vector<int> lines, shown;
  for (const std::string_view line : split(ran.out, '\n'))
    if (line.starts_with("step: ")) lines.push_back(std::stoi(std::string(line.substr(6))));
  EXPECT_EQ(lines, logged);
  const auto events = test::read_event_folder(folder_.path() + "/metrics");
  for (const auto& [step, loss] : events.at("loss"))
    shown.push_back(static_cast<int>(step));
  EXPECT_EQ(shown, logged);
}

TEST_F(TrainMetrics, RowsTellTheTimeAndTheMemory) {
  double last = now() - 0.001;  // rows have milliseconds
  ASSERT_EQ(train("--training.steps=3").code, 0);
  for (const Json& row : rows()) {
    EXPECT_GE(row["time"].get<double>(), last);
    last = row["time"];
    EXPECT_GT(row["memory_bytes"].get<double>(), 1e6);
  }
  EXPECT_LE(last, now() + 0.001);
}

TEST_F(TrainMetrics, AFullDiskOfMetricsSavesTheStepFirst) {
  if (test::run_shell("unshare -rm sh -c 'mount -t tmpfs none /mnt'").code != 0)
    GTEST_SKIP() << "this machine lets nobody mount a small disk";
  std::filesystem::create_directories(folder_.path() + "/metrics");
  const Ran full = test::run_shell(
      fmt::format("unshare -rm sh -c \"mount -t tmpfs -o size=12k none metrics && "
                  "'{}' train run.toml --training.steps=1000000 --checkpoint.interval=0\"",
                  SLUICE_ENGINE_BINARY),
      folder_.path());
  EXPECT_EQ(full.code, 75) << full.err;
  const auto saved = full.err.find("sluice: saved step ");
  const auto told = full.err.find("cannot write metrics/");
  ASSERT_NE(told, std::string::npos) << full.err;
  EXPECT_NE(full.err.find("No space left on device"), std::string::npos) << full.err;
  EXPECT_LT(saved, told) << full.err;
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/checkpoints/LATEST"));
}

}  // namespace
}  // namespace sluice
