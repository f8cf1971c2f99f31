// What people see while sluice train runs, and when it breaks: the real program on a real terminal
// and on really full disks.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/run_sluice.h"
#include "support/small_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;
using test::run_shell;
using test::TemporaryFolder;

// The learning rate does not depend on the number of steps, so that a shorter run is the beginning
// of a longer one.
constexpr const char* kConfig = R"(
[model]
layers = 2
dim = 32
heads = 2
[data]
path = "corpus.txt"
format = "text"
validation_fraction = 0.1
[training]
steps = 6
sequence_length = 32
global_batch_size = 4
[lr_scheduler]
min_lr_ratio = 1.0
[parallelism]
pipeline_parallel_degree = 2
num_microbatches = 2
[checkpoint]
folder = "out/checkpoints"
interval = 2
[validation]
interval = 4
[metrics]
folder = "out/metrics"
)";

class TrainOutput : public testing::Test {
 protected:
  TrainOutput() {
    folder_.write("corpus.txt", test::small_corpus());
    folder_.write("run.toml", kConfig);
  }

  // One core, so that every rank has one thread: bits are equal for equal threads per rank.
  static std::string command(const std::string& flags = "") {
    return fmt::format("taskset -c 0 '{}' train run.toml {}", SLUICE_ENGINE_BINARY, flags);
  }
  Ran train(const std::string& flags = "", const std::string& before = "") const {
    return run_shell(before + command(flags), folder_.path());
  }

  // Loss of every step, as written: equal text is equal bits.
  std::map<int, std::string> losses() const {
    std::map<int, std::string> out;
    const std::string text = test::read_text(folder_.path() + "/out/metrics/metrics.jsonl");
    for (const std::string_view line : split(text, '\n'))
      if (!line.empty()) {
        const Json row = Json::parse(line);
        out[row["step"]] = row["loss"].dump();
      }
    return out;
  }

  // The losses of a run in which nothing went wrong.
  std::map<int, std::string> undisturbed() const {
    const Ran ran = train();
    EXPECT_EQ(ran.code, 0) << ran.err;
    const auto out = losses();
    std::filesystem::remove_all(folder_.path() + "/out");
    return out;
  }

  // A run that ends with `code` and, but for the notes of a run, says one line with all `words`.
  static void expect_one_line(const Ran& ran, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(ran.code, code) << ran.err;
    std::vector<std::string> lines;
    for (const std::string_view line : split(ran.err, '\n'))
      if (!line.empty() && !test::is_banner(line) && !line.starts_with("sluice: saved step") &&
          !line.starts_with("sluice: resumed ") && !line.starts_with("sluice: optimizer.name was "))
        lines.emplace_back(line);
    ASSERT_EQ(lines.size(), 1u) << ran.err;
    for (const std::string& word : words)
      EXPECT_NE(lines[0].find(word), std::string::npos) << lines[0] << "\nlacks: " << word;
  }

  TemporaryFolder folder_;
};

// --- The terminal ------------------------------------------------------------------------------

// Runs a shell command whose standard error, and standard output unless the command redirects it,
// are a terminal; returns what the terminal received.
std::string on_a_terminal(const std::string& command, const std::string& folder, int& code,
                          unsigned short columns = 80) {
  int terminal = -1;
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    if (::chdir(folder.c_str()) == 0) ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string out;
  char buffer[4096];
  // The terminal answers EIO once the last program has left it.
  for (ssize_t got; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<std::size_t>(got));
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

// What stands on the terminal in the end: carriage returns go back, ESC [ K clears to the end.
std::vector<std::string> screen(const std::string& received) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < received.size(); ++i) {
    std::string& line = lines.back();
    if (received[i] == '\r') {
      column = 0;
    } else if (received[i] == '\n') {
      lines.emplace_back();
    } else if (received.compare(i, 3, "\x1b[K") == 0) {
      line.resize(std::min(line.size(), column));
      i += 2;
    } else {
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = received[i];
    }
  }
  return lines;
}

void expect_step_lines(const std::vector<std::string>& lines, int num_steps) {
  int step = 0;
  for (const std::string& line : lines)
    if (line.starts_with("step:")) {
      ++step;
      EXPECT_TRUE(line.starts_with(fmt::format("step: {:2}  loss: ", step))) << line;
      EXPECT_NE(line.find("%)  tps: "), std::string::npos) << line;
      EXPECT_NE(line.find("  bubble: "), std::string::npos) << line;
      EXPECT_EQ(line.find("left"), std::string::npos) << line;
    }
  EXPECT_EQ(step, num_steps);
}

TEST_F(TrainOutput, ATerminalHasABarAndWholeStepLines) {
  int code = -1;
  const std::string received = on_a_terminal(command(), folder_.path(), code);
  EXPECT_EQ(code, 0) << received;
  EXPECT_NE(received.find("[############------------]  3/6  50%  loss "), std::string::npos)
      << received;
  EXPECT_NE(received.find(" left\r"), std::string::npos) << received;
  const std::vector<std::string> lines = screen(received);
  expect_step_lines(lines, 6);
  for (const std::string& line : lines)
    EXPECT_FALSE(line.starts_with("[")) << "a bar was left: " << line;
}

TEST_F(TrainOutput, OnlyTheBarGoesToTheTerminalWhenStepLinesGoToAFile) {
  int code = -1;
  const std::string received = on_a_terminal(command(">steps"), folder_.path(), code, 40);
  EXPECT_EQ(code, 0) << received;
  // Too narrow for boxes, and never so wide that the line would wrap.
  EXPECT_NE(received.find("\x1b[K3/6  50%  loss "), std::string::npos) << received;
  for (const std::string_view piece : split(received, '\r'))
    EXPECT_TRUE(piece.find("/6  ") == std::string_view::npos || piece.size() <= 39u + 3u) << piece;
  EXPECT_EQ(received.find("\nstep: "), std::string::npos) << received;
  const std::string steps = test::read_text(folder_.path() + "/steps");
  std::vector<std::string> lines;
  for (const std::string_view line : split(steps, '\n'))
    if (!line.empty()) lines.emplace_back(line);
  EXPECT_EQ(lines.size(), 6u);
  expect_step_lines(lines, 6);
  EXPECT_EQ(steps.find_first_of("\r\x1b"), std::string::npos);
}

TEST_F(TrainOutput, ThereIsNoBarWhereNoneIsWanted) {
  int code = -1;
  const std::string received =
      on_a_terminal(command("--metrics.progress=false"), folder_.path(), code);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(received.find("left"), std::string::npos) << received;
  expect_step_lines(screen(received), 6);
  std::filesystem::remove_all(folder_.path() + "/out");
  const Ran piped = train();
  EXPECT_EQ((piped.out + piped.err).find_first_of("\r\x1b"), std::string::npos);
  EXPECT_EQ(piped.err.find("left"), std::string::npos) << piped.err;
}

// --- Full disks --------------------------------------------------------------------------------

TEST_F(TrainOutput, AFileLimitWhileSavingLosesNothing) {
  const auto reference = undisturbed();
  ASSERT_EQ(train("--training.steps=2").code, 0);
  // Shards have more than 32 KiB, metrics less. The unit of sh is half a KiB.
  const Ran full = train("", "ulimit -f 64; ");
  expect_one_line(full, 75,
                  {"out/checkpoints/step-00000004/rank-0000", "File too large", "ulimit -f",
                   "nothing saved before is lost"});
  const Ran resumed = train();
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed from step 2"), std::string::npos) << resumed.err;
  EXPECT_EQ(losses(), reference);
}

TEST_F(TrainOutput, AFullDiskWhileSavingLosesNothing) {
  if (run_shell("unshare -rm sh -c 'mount -t tmpfs none /mnt'").code != 0)
    GTEST_SKIP() << "this machine lets nobody mount a small disk";
  const auto reference = undisturbed();
  // A disk of 900 KiB: one checkpoint fits, a second one does not.
  std::filesystem::create_directory(folder_.path() + "/out");
  const Ran ran = run_shell(
      fmt::format("unshare -rm sh -c \"mount -t tmpfs -o size=900k none out && {}; code=\\$?; "
                  "cp -r out kept; exit \\$code\"",
                  command()),
      folder_.path());
  expect_one_line(ran, 75,
                  {"out/checkpoints/step-0000000", "No space left on device", "make room",
                   "nothing saved before is lost"});
  std::filesystem::remove(folder_.path() + "/out");
  std::filesystem::rename(folder_.path() + "/kept", folder_.path() + "/out");
  const Ran resumed = train();
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed from step 2"), std::string::npos) << resumed.err;
  EXPECT_EQ(losses(), reference);
}

TEST_F(TrainOutput, MetricsThatCannotGrowEndTheRun) {
  const Ran full = train("--checkpoint.folder=", "ulimit -f 1; ");
  expect_one_line(full, 75, {"out/metrics/", "File too large", "nothing saved before is lost"});
  // What was written is whole.
  for (const auto& [step, loss] : losses())
    EXPECT_NE(loss, "null") << step;
}

TEST_F(TrainOutput, FoldersThatCannotBeWrittenAreToldBeforeTraining) {
  std::filesystem::create_directory(folder_.path() + "/locked");
  std::filesystem::permissions(folder_.path() + "/locked", std::filesystem::perms(0555));
  // Root is above permissions, unless it gives that up.
  const std::string before = ::geteuid() == 0 ? "setpriv --bounding-set=-dac_override " : "";
  for (const char* key : {"checkpoint.folder", "metrics.folder"})
    for (const auto& [folder, reason] : {std::pair{"locked/a", "Permission denied"},
                                         std::pair{"corpus.txt/a", "Not a directory"}}) {
      SCOPED_TRACE(fmt::format("{} = {}", key, folder));
      const Ran ran = train(fmt::format("--{}={}", key, folder), before);
      expect_one_line(ran, 2, {fmt::format("{}", folder).substr(0, 6), reason});
      EXPECT_EQ(ran.out, "");
    }
}

// --- Divergence --------------------------------------------------------------------------------

TEST_F(TrainOutput, ALossThatIsNoNumberEndsTheRunAndKeepsTheCheckpoint) {
  ASSERT_EQ(train("--training.steps=2").code, 0);
  const Ran ran = train(
      "--optimizer.lr=1000 --training.max_norm=0 --optimizer.name=sgd "
      "--checkpoint.interval=0 --training.steps=60");
  expect_one_line(ran, 17, {"step ", "has diverged", "optimizer.lr", "train --rollback 1"});
  EXPECT_EQ(test::read_text(folder_.path() + "/out/checkpoints/LATEST"), "step-00000002\n");
  for (const auto& [step, loss] : losses())
    EXPECT_NE(loss, "null") << step;
  EXPECT_EQ(train().code, 0);
}

}  // namespace
}  // namespace sluice
