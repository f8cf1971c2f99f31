// Training whose standard files are closed, full or left by their readers, and whose machine is
// full.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using test::Ran;

class TrainStreams : public test::TinyRun {
 protected:
  bool is_saved(int step) const {
    return std::filesystem::exists(fmt::format("{}/checkpoints/step-{:08}", folder_.path(), step));
  }
};

TEST_F(TrainStreams, WhatIsPrintedGoesIntoNoOtherFile) {
  // No checkpoints: their lock would be the first file to be opened, and take it all.
  ASSERT_EQ(train("--checkpoint.folder= >&-").code, 0);
  std::istringstream lines(test::read_text(folder_.path() + "/metrics/metrics.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(count, 12);
}

TEST_F(TrainStreams, AFullLogEndsNoRun) {
  EXPECT_EQ(train("2>/dev/full").code, 0);
  EXPECT_TRUE(is_saved(12));
  EXPECT_EQ(train("--model.layers=none 2>/dev/full").code, 2);
}

TEST_F(TrainStreams, AReaderThatLeavesEndsNoRun) {
  const Ran ran = sluice("train run.toml | head -n 1");
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
  EXPECT_TRUE(is_saved(12)) << ran.err;
}

TEST_F(TrainStreams, ATraceThatCannotBeWrittenIsRefusedAtTheStart) {
  for (const auto& [file, words] : {std::pair("nowhere/trace.svg", "cannot write to nowhere"),
                                    std::pair("trace.pdf", "needs a file that ends in .json")}) {
    const Ran ran = train(fmt::format("--trace {}", file));
    EXPECT_EQ(ran.code, 2);
    EXPECT_NE(ran.err.find(words), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
  EXPECT_FALSE(is_saved(4));
}

// Weights that fit, and a product of 9.5 TiB that does not.
TEST_F(TrainStreams, AFullMachineIsToldInOneLine) {
  std::ifstream setting("/proc/sys/vm/overcommit_memory");
  if (int value = 0; setting >> value && value == 1)
    GTEST_SKIP() << "here memory is promised without end";
  const Ran ran = train(
      "--model.layers=1 --model.dim=2 --model.heads=1 --model.ffn_dim=10000000 "
      "--training.global_batch_size=8192 --parallelism.pipeline_parallel_degree=1 "
      "--parallelism.pipeline_parallel_schedule=1f1b --parallelism.num_microbatches=1");
  EXPECT_EQ(ran.code, 75);
  EXPECT_NE(ran.err.find("out of memory on this machine: the weights of a pipeline take "),
            std::string::npos)
      << ran.err;
  EXPECT_EQ(ran.err.find("bug"), std::string::npos) << ran.err;
  int lines = 0;
  for (const std::string_view line : split(ran.err, '\n'))
    lines += line.empty() || test::is_banner(line) ? 0 : 1;
  EXPECT_EQ(lines, 1) << ran.err;
}

TEST_F(TrainStreams, WeightsThatDoNotFitAreRefusedAtTheStart) {
  const Ran ran = train("--model.dim=200000 --model.heads=10");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("weights, gradients and optimizer of all ranks take "), std::string::npos)
      << ran.err;
  EXPECT_NE(ran.err.find(" MiB, and this machine has "), std::string::npos) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  const Ran dry = train("--model.dim=200000 --model.heads=10 --dry-run");
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("train would refuse here: " + ran.err.substr(ran.err.find("weights"))),
            std::string::npos)
      << dry.out;
}

}  // namespace
}  // namespace sluice
