// A tiny training run in a folder of its own: seconds, not minutes.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/golden.h"
#include "support/run_sluice.h"
#include "support/small_run.h"

namespace sluice::test {

inline constexpr const char* kTinyConfig = R"(
[model]
layers = 4
dim = 32
heads = 2
tied_embeddings = true
[data]
path = "corpus.txt"
format = "text"
validation_fraction = 0.1
[training]
steps = 12
sequence_length = 32
global_batch_size = 8
[optimizer]
lr = 5e-3
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "v-half"
num_microbatches = 4
[checkpoint]
folder = "checkpoints"
interval = 4
[validation]
interval = 6
[metrics]
folder = "metrics"
)";

class TinyRun : public testing::Test {
 protected:
  TinyRun() {
    folder_.write("corpus.txt", small_corpus());
    folder_.write("run.toml", kTinyConfig);
  }

  // One core, so that every rank has one thread: bits are equal for equal threads per rank.
  Ran sluice(const std::string& arguments) const {
    return run_shell(fmt::format("taskset -c 0 '{}' {}", SLUICE_ENGINE_BINARY, arguments),
                     folder_.path());
  }
  Ran train(const std::string& flags = "") const { return sluice("train run.toml " + flags); }

  // Kills a run that is too long to end by itself as soon as it has saved, and gives the step that
  // it saved last. To resume it, the learning rate must not depend on the number of steps.
  int killed_after_save(const std::string& flags) const {
    const Ran killed = run_shell(
        fmt::format("taskset -c 0 '{}' train run.toml {} >out 2>&1 & "
                    "pid=$!; while [ ! -e checkpoints/LATEST ] && kill -0 $pid; do sleep 0.01; "
                    "done; kill -9 $pid; wait $pid",
                    SLUICE_ENGINE_BINARY, flags),
        folder_.path());
    EXPECT_EQ(killed.code, 137) << read_text(folder_.path() + "/out");
    if (killed.code != 137) return 0;
    const std::string latest = read_text(folder_.path() + "/checkpoints/LATEST");
    return std::stoi(latest.substr(latest.find('-') + 1));
  }

  void clear() const {
    for (const char* name : {"checkpoints", "metrics"})
      std::filesystem::remove_all(folder_.path() + "/" + name);
  }

  TemporaryFolder folder_;
};

}  // namespace sluice::test
