// What mpi_test starts under mpirun: `mpi_program NAME` runs one of the cases, or one of the
// programs below that only processes can run. A rank that ends well prints "rank R ok"; one that
// fails prints "rank R at T: error" on standard error, T in seconds since 1970.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "comm/cases.h"
#include "sluice/comm/mpi/mpi.h"

namespace sluice {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void say(FILE* file, const std::string& line) {
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

void compute(milliseconds duration) {
  const auto end = Clock::now() + duration;
  while (Clock::now() < end) {
  }
}

// Rank 0 posts a large send and computes on without a further call; rank 1 prints how long it took
// to get the message.
void send_while_computing(Communicator& world) {
  std::vector<std::byte> bytes(16U << 20U, std::byte{7});
  world.barrier();
  const auto start = Clock::now();
  if (world.rank() == 0) {
    Request request = world.send(1, bytes, "0F0");
    compute(milliseconds(1000));
    world.wait(request);
  } else {
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    // Only now, when the sender has long been computing.
    std::this_thread::sleep_for(milliseconds(50));
    Request request = world.recv(0, bytes, "0F0");
    world.wait(request);
    say(stdout, fmt::format("received after {:.3f} s", seconds(Clock::now() - start)));
  }
}

// Rank 1 ends or stops itself with a signal; the others wait for it, or compute without a call.
void lose_rank_1(Communicator& world, int signal, bool others_compute) {
  world.barrier();
  std::vector<std::byte> bytes(100'000);
  if (world.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(300));
    say(stderr, fmt::format("rank 1 with pid {} signals itself at {:.3f}", getpid(), wall_clock()));
    raise(signal);
    std::this_thread::sleep_for(std::chrono::seconds(20));  // the signal took no effect
  }
  if (others_compute) {
    compute(milliseconds(15'000));
  } else {
    Request to = world.send(1, bytes, "0F3");
    Request from = world.recv(1, bytes, "1I3");
    world.wait(from);
    world.wait(to);
  }
}

// Rank 1 is alive, as its heartbeat shows, and does not come.
void hang_in_a_loop(Communicator& world) {
  world.barrier();
  if (world.rank() == 1) compute(milliseconds(15'000));
  world.barrier("step 7");
}

void end_at_different_times(Communicator& world) {
  world.barrier();
  std::this_thread::sleep_for(milliseconds(1200) * world.rank());
}

void latency(Communicator& world) {
  std::vector<std::byte> byte(8);
  const auto start = Clock::now();
  constexpr int kNumRounds = 2000;
  for (int i = 0; i < 2 * kNumRounds; ++i) {
    Request request = world.rank() == i % 2 ? world.send(1 - world.rank(), byte, "ping")
                                            : world.recv(1 - world.rank(), byte, "ping");
    world.wait(request);
  }
  say(stdout, fmt::format("{:.1f} us per round", seconds(Clock::now() - start) * 1e6 / kNumRounds));
}

std::vector<test::CommCase> programs() {
  std::vector<test::CommCase> list = test::all_cases();
  const auto lose = [](int signal, bool others_compute) {
    return [=](Communicator& world) { lose_rank_1(world, signal, others_compute); };
  };
  list.push_back({"send_while_computing", 2, send_while_computing, {}});
  list.push_back({"kill", 3, lose(SIGKILL, false), {}});
  list.push_back({"kill_while_computing", 3, lose(SIGKILL, true), {}});
  list.push_back({"stop", 3, lose(SIGSTOP, false), {}});
  list.push_back({"stop_while_computing", 3, lose(SIGSTOP, true), {}});
  list.push_back({"hang_in_a_loop", 3, hang_in_a_loop, {}, milliseconds(1500)});
  list.push_back({"end_at_different_times", 3, end_at_different_times, {}});
  list.push_back({"latency", 2, latency, {}});
  return list;
}

int run(const std::string& name) {
  for (const test::CommCase& program : programs()) {
    if (program.name != name) continue;
    int rank = -1;
    const auto body = [&](Communicator& world) {
      rank = world.rank();
      program.body(world);
    };
    const auto report = [&](const std::exception_ptr& cause, bool speaks) {
      if (speaks) say(stderr, fmt::format("rank {} speaks", rank));
      try {
        std::rethrow_exception(cause);
      } catch (const std::exception& error) {
        say(stderr, fmt::format("rank {} at {:.3f}: {}", rank, wall_clock(), error.what()));
      }
      return 9;
    };
    // Few tags, so that they repeat.
    const MpiOptions options{.comm = {program.deadline}, .num_tags = 5};
    const int code = run_mpi(options, body, report);
    if (code == 0) say(stdout, fmt::format("rank {} ok", rank));
    return code;
  }
  say(stderr, name + ": no such program");
  return 2;
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  if (argc == 2) return sluice::run(argv[1]);
  std::puts(sluice::has_mpi() ? "with MPI" : "without MPI");
  return 0;
}
