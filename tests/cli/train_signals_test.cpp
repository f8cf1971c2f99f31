// sluice train and the signals that ask it to stop. The run is held in its first step: its standard
// output is a pipe that is full, so no test depends on how fast a step is.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using test::Ran;

class TrainSignals : public test::TinyRun {
 protected:
  // Holds a run in its first step, runs `script` in the shell that started it and returns the run's
  // exit code. $pid is the run; `let_go` reads the pipe until the run ends; standard error goes to
  // the file err.
  int held(const std::string& script, const std::string& flags = "",
           const std::string& before = "") const {
    return test::run_shell(
               fmt::format("mkfifo pipe; exec 3<>pipe\n"
                           "dd if=/dev/zero of=pipe bs=4096 oflag=nonblock 2>/dev/null\n"
                           "let_go() {{ cat pipe >/dev/null & exec 3>&-; }}\n"
                           "{} '{}' train run.toml {} >pipe 2>err 3>&- & pid=$!\n"
                           "while [ ! -s metrics/metrics.jsonl ] && kill -0 $pid; do sleep 0.02; "
                           "done\n{}\nwait $pid",
                           before, SLUICE_ENGINE_BINARY, flags, script),
               folder_.path())
        .code;
  }

  std::string said() const { return test::read_text(folder_.path() + "/err"); }

  std::size_t count(const std::string& word) const {
    const std::string text = said();
    std::size_t found = 0;
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      ++found;
    return found;
  }

  void start_again() const {
    clear();
    std::filesystem::remove(folder_.path() + "/pipe");
  }
};

constexpr const char* kAsked = "sluice: stopping after this step; again to quit without saving\n";

// `timeout` signals its child and then the group of it. A stopped process has all signals waiting
// when it goes on.
TEST_F(TrainSignals, SignalsTogetherAreOneRequestAndTheStepIsSaved) {
  for (const char* signals : {"TERM USR1", "INT HUP TERM"}) {
    SCOPED_TRACE(signals);
    start_again();
    EXPECT_EQ(held(fmt::format("kill -STOP $pid; for signal in {}; do kill -$signal $pid; done; "
                               "kill -CONT $pid; let_go",
                               signals)),
              143);
    EXPECT_EQ(count(kAsked), 1u) << said();
    EXPECT_EQ(count("sluice: saved step 2 in checkpoints\n"), 1u) << said();
    EXPECT_EQ(count("sluice: stopped after step 2; the same command resumes\n"), 1u) << said();
  }
  const Ran resumed = train();
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed from step 2"), std::string::npos) << resumed.err;
}

TEST_F(TrainSignals, EachOfThemAloneSavesAndExitsWith143) {
  for (const char* signal : {"TERM", "INT", "USR1", "HUP"}) {
    SCOPED_TRACE(signal);
    start_again();
    EXPECT_EQ(held(fmt::format("kill -{} $pid; let_go", signal)), 143);
    EXPECT_EQ(count("sluice: saved step 2 in checkpoints\n"), 1u) << said();
  }
  start_again();
  EXPECT_EQ(held("kill -TERM $pid; let_go", "--checkpoint.folder="), 143);
  EXPECT_EQ(count("stopped after step 2; nothing is saved: checkpoint.folder is empty\n"), 1u)
      << said();
}

// The run cannot leave its step: only the second signal ends it.
TEST_F(TrainSignals, ASignalTwoSecondsAfterTheFirstQuitsWithoutSaving) {
  EXPECT_EQ(held("kill -TERM $pid; n=0; "
                 "until grep -q stopping err || [ $n = 500 ]; do sleep 0.02; n=$((n+1)); done; "
                 "sleep 2.1; kill -TERM $pid"),
            143);
  EXPECT_EQ(said().substr(said().size() - std::min(said().size(), std::string(kAsked).size())),
            kAsked);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/checkpoints/LATEST"));
}

TEST_F(TrainSignals, NohupKeepsTheRunGoing) {
  EXPECT_EQ(held("kill -HUP $pid; let_go", "", "nohup"), 0) << said();
  EXPECT_EQ(count(kAsked), 0u) << said();
  EXPECT_EQ(count("sluice: saved step 12 in checkpoints\n"), 1u) << said();
}

}  // namespace
}  // namespace sluice
