// The Communicator over MPI: every case in its own mpirun, with an eager limit so small that
// nearly all messages are rendezvous ones; then what only processes can do: die, stop and hang.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <thread>

#include "comm/cases.h"
#include "sluice/base/error.h"
#include "support/run_sluice.h"

namespace sluice {

namespace {

using test::Ran;

const char* const kRendezvous = "--mca btl_vader_eager_limit 64 --mca btl_tcp_eager_limit 64";
// Every fragment through shared memory, with the sender's help.
const char* const kTwoCopies = "--mca btl_vader_single_copy_mechanism none";

Ran mpirun(int num_ranks, const std::string& program, const std::string& flags = kRendezvous) {
  return test::run_shell(
      fmt::format("exec timeout -k 5 40 {} -n {} --oversubscribe "
                  "--allow-run-as-root --bind-to none {} {} {}",
                  SLUICE_MPIRUN, num_ranks, flags, SLUICE_MPI_PROGRAM, program));
}

bool without_mpi() {
  return test::run_shell(SLUICE_MPI_PROGRAM).out.find("with MPI") == std::string::npos;
}

// "rank R at T: error" of one rank; "" if it printed none.
std::string error_of(const Ran& ran, int rank) {
  std::smatch found;
  const std::regex line(fmt::format("rank {} at [0-9.]+: ([^\n]*)", rank));
  return std::regex_search(ran.err, found, line) ? found[1].str() : "";
}

double time_in(const Ran& ran, const std::string& pattern) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(ran.err, found, std::regex(pattern))) << pattern << "\n" << ran.err;
  return found.empty() ? 0 : std::stod(found[1].str());
}

// Of the ranks that report a failure one speaks for all.
void expect_one_speaks(const Ran& ran, const std::string& ranks = "[0-9]+") {
  const std::regex speaks(fmt::format("rank {} speaks", ranks));
  const auto begin = std::sregex_iterator(ran.err.begin(), ran.err.end(), speaks);
  EXPECT_EQ(std::distance(begin, std::sregex_iterator()), 1) << ran.err;
}

class OverMpi : public testing::TestWithParam<test::CommCase> {
  void SetUp() override {
    if (without_mpi()) GTEST_SKIP() << "built without MPI";
  }
};

TEST_P(OverMpi, Case) {
  const test::CommCase& c = GetParam();
  const Ran ran = mpirun(c.num_ranks, c.name);
  EXPECT_EQ(ran.code == 0, c.errors.empty()) << ran.err;
  if (!c.errors.empty()) expect_one_speaks(ran);
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    if (c.errors.empty()) {
      EXPECT_NE(ran.out.find(fmt::format("rank {} ok", rank)), std::string::npos) << ran.out;
      continue;
    }
    const std::string text = error_of(ran, rank);
    EXPECT_NE(text, "") << "rank " << rank << " ended without an error:\n" << ran.err;
    for (const std::string& part : c.errors[static_cast<std::size_t>(rank)]) {
      EXPECT_NE(text.find(part), std::string::npos)
          << "rank " << rank << ": " << text << "\nlacks: " << part;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Comm, OverMpi, testing::ValuesIn(test::all_cases()),
                         [](const auto& c) { return c.param.name; });

class MpiProcesses : public testing::Test {
  void SetUp() override {
    if (without_mpi()) GTEST_SKIP() << "built without MPI";
  }
};

TEST_F(MpiProcesses, ASendProgressesWhileItsRankComputes) {
  for (const char* flags : {"", kTwoCopies}) {
    const Ran ran = mpirun(2, "send_while_computing", std::string(kRendezvous) + " " + flags);
    ASSERT_EQ(ran.code, 0) << ran.err;
    std::smatch found;
    ASSERT_TRUE(std::regex_search(ran.out, found, std::regex("received after ([0-9.]+) s")));
    std::cout << "16 MiB " << found[0] << " while the sender computes for 1 s " << flags << "\n";
    EXPECT_LT(std::stod(found[1].str()), 0.6) << "the message waited for the sender's next call";
  }
}

TEST_F(MpiProcesses, RanksMayEndAtDifferentTimes) {
  const Ran ran = mpirun(3, "end_at_different_times");
  EXPECT_EQ(ran.code, 0) << ran.err;
}

// Ended: no such process, or one that only waits to be reaped (where nobody reaps orphans).
bool has_ended(pid_t pid) {
  if (kill(pid, 0) != 0) return true;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(") ");
  return name_end == std::string::npos || text[name_end + 2] == 'Z';
}

// Rank 1 is lost: both others must name it, and say so in time; and nothing may be left over.
void expect_loss_is_named(const std::string& program) {
  const Ran ran = mpirun(3, program);
  EXPECT_NE(ran.code, 0);
  expect_one_speaks(ran, "[02]");  // mpirun may wake a stopped rank 1
  const double lost = time_in(ran, "rank 1 with pid [0-9]+ signals itself at ([0-9.]+)");
  for (int rank : {0, 2}) {
    EXPECT_EQ(error_of(ran, rank).find("rank 1 failed: no sign of life for"), 0U) << ran.err;
    const double took = time_in(ran, fmt::format("rank {} at ([0-9.]+)", rank)) - lost;
    std::cout << program << ": rank " << rank << " reports rank 1 after " << took << " s\n";
    EXPECT_LT(took, 3);
  }
  const pid_t pid = static_cast<pid_t>(time_in(ran, "rank 1 with pid ([0-9]+)"));
  bool gone = false;
  for (int i = 0; i < 50 && !gone; ++i) {
    gone = has_ended(pid);
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(gone) << "pid " << pid << " is left over";
  if (!gone) kill(pid, SIGKILL);
}

TEST_F(MpiProcesses, AKilledRankIsNamedByThoseWhoWait) { expect_loss_is_named("kill"); }
TEST_F(MpiProcesses, AKilledRankIsNamedByThoseWhoCompute) {
  expect_loss_is_named("kill_while_computing");
}
TEST_F(MpiProcesses, AStoppedRankIsNamedByThoseWhoWait) { expect_loss_is_named("stop"); }
TEST_F(MpiProcesses, AStoppedRankIsNamedByThoseWhoCompute) {
  expect_loss_is_named("stop_while_computing");
}

TEST_F(MpiProcesses, AHungRankIsNamedAtTheDeadline) {
  const Ran ran = mpirun(3, "hang_in_a_loop");
  EXPECT_NE(ran.code, 0);
  expect_one_speaks(ran);
  for (int rank : {0, 1, 2}) {
    const std::string text = error_of(ran, rank);
    EXPECT_NE(text.find("waited 1.5 s for rank 1 to"), std::string::npos) << rank << ": " << text;
    EXPECT_NE(text.find("rank 1 waits for nobody"), std::string::npos) << rank << ": " << text;
  }
}

TEST_F(MpiProcesses, AUserOfTheWrongMpirunIsTold) {
  const Ran ran = test::run_shell(
      fmt::format("PMI_RANK=1 PMI_SIZE=2 exec timeout -k 5 40 {} latency", SLUICE_MPI_PROGRAM));
  EXPECT_NE(ran.code, 0);
  EXPECT_NE(ran.err.find("where the launcher says PMI_RANK=1, PMI_SIZE=2"), std::string::npos)
      << ran.err;
}

}  // namespace

}  // namespace sluice
