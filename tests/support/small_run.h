// A small run: its configuration and a text to train on.
#pragma once

#include <fmt/format.h>

#include <string>

namespace sluice::test {

// Two devices with four of eight layers each, four microbatches of two sequences of 32 tokens.
inline std::string small_run(int steps) {
  return fmt::format(R"(
[model]
layers = 8
dim = 32
heads = 2
[data]
path = "corpus.txt"
format = "text"
[training]
steps = {}
sequence_length = 32
global_batch_size = 8
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "zb-v"
num_microbatches = 4
)",
                     steps);
}

inline std::string small_corpus() {
  std::string text;
  for (int n = 0; n < 400; ++n)
    text += fmt::format("line {} of a small text that repeats itself; ", n % 7);
  return text;
}

}  // namespace sluice::test
