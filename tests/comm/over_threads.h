// Runs one of the cases over threads and compares how every rank ends with what it says.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/cases.h"
#include "sluice/comm/threads/threads.h"

namespace sluice::test {

// `run` has body(world) run, where world is made from the communicator it is given.
using RunBody = std::function<void(Communicator& threads, const CommOptions& options,
                                   const std::function<void(Communicator&)>& body)>;

inline void expect_case(const CommCase& c, const RunBody& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::string> texts(static_cast<std::size_t>(c.num_ranks));
  const CommOptions options{c.deadline};
  const auto recording = [&](Communicator& threads) {
    try {
      run(threads, options, c.body);
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(threads.rank())] = error.what();
      throw;
    }
  };
  const auto start = Clock::now();
  if (c.errors.empty()) {
    run_threads(c.num_ranks, {.comm = options}, recording);
    return;
  }
  EXPECT_ANY_THROW(run_threads(c.num_ranks, {.comm = options}, recording));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << "an error took its time";
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const std::string& part : c.errors[rank]) {
      EXPECT_NE(texts[rank].find(part), std::string::npos)
          << "rank " << rank << ": " << texts[rank] << "\nlacks: " << part;
    }
  }
}

}  // namespace sluice::test
