// Is the proof right? Every generator's output is spoilt at random, by hundreds of thousands of
// small mutations, and an executor that shares no code with the validator runs what comes out. The
// validator must accept exactly the mutants that run to the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/transforms/communication.h"
#include "sluice/schedule/validate.h"
#include "support/rendezvous_executor.h"

namespace sluice {
namespace {

// Makes small random mistakes in a schedule.
class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  int below(std::size_t n) { return static_cast<int>(random_() % n); }

  // One mistake. Where the one drawn does not fit the schedule, nothing happens.
  void spoil(Schedule& schedule) {
    Program& program = any_of(schedule.programs);
    if (program.empty()) return;
    const auto i = static_cast<std::size_t>(below(program.size()));
    switch (below(13)) {
      case 0: take(program, i); break;
      case 1: insert(program, program[i]); break;
      case 2: swap(program, i, static_cast<std::size_t>(below(program.size()))); break;
      case 3: insert(any_of(schedule.programs), take(program, i)); break;
      case 4: program[i].microbatch += step(); break;
      case 5: program[i].slice = static_cast<std::uint16_t>(program[i].slice + step()); break;
      case 6: program[i].stage += step(); break;
      case 7: program[i].kind = static_cast<OpKind>(below(kNumOpKinds)); break;
      case 8: swap_alike(program, i); break;
      // Small moves are those that often leave the schedule valid, or only just not.
      case 9: swap(program, i, (i + 1) % program.size()); break;
      case 10:
      case 11: move_near(program, i); break;
      case 12: swap_messages(schedule, program, i); break;
    }
  }

 private:
  int step() { return below(2) == 0 ? -1 : 1; }

  template <typename T>
  T& any_of(std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(list.size()))];
  }

  // Groups stay where they are: ops change places, their being joined does not.
  static void swap(Program& program, std::size_t i, std::size_t j) {
    std::swap(program[i], program[j]);
    const bool joined = program[i].joined;
    program[i].joined = program[j].joined;
    program[j].joined = joined;
  }

  static Op take(Program& program, std::size_t i) {
    const Op op = program[i];
    if (!op.joined && i + 1 < program.size()) program[i + 1].joined = 0;
    program.erase(program.begin() + static_cast<std::ptrdiff_t>(i));
    return op;
  }

  static void insert_at(Program& program, Op op, std::size_t i) {
    op.joined = 0;
    program.insert(program.begin() + static_cast<std::ptrdiff_t>(i), op);
  }

  void insert(Program& program, const Op& op) {
    insert_at(program, op, static_cast<std::size_t>(below(program.size() + 1)));
  }

  // Two sends, two receives, two forwards, ... of one device change places.
  void swap_alike(Program& program, std::size_t i) {
    std::vector<std::size_t> alike;
    for (std::size_t j = 0; j < program.size(); ++j)
      if (program[j].kind == program[i].kind) alike.push_back(j);
    swap(program, i, any_of(alike));
  }

  // Two sends of one device change places, and so do their receives: all messages still meet, but
  // devices may wait for each other.
  void swap_messages(Schedule& schedule, Program& program, std::size_t i) {
    if (!is_send(program[i].kind)) return;
    const Op one = program[i];
    swap_alike(program, i);
    const Op other = program[i];
    for (Program& receiver : schedule.programs) {
      const auto a = std::find(receiver.begin(), receiver.end(), receive_of(one));
      const auto b = std::find(receiver.begin(), receiver.end(), receive_of(other));
      if (a != receiver.end() && b != receiver.end()) std::iter_swap(a, b);
    }
  }

  static Op receive_of(Op send) {
    send.stage += send.kind == OpKind::SendF ? 1 : -1;
    send.kind = send.kind == OpKind::SendF ? OpKind::RecvF : OpKind::RecvB;
    return send;
  }

  void move_near(Program& program, std::size_t i) {
    const Op op = take(program, i);
    const std::size_t first = i < 4 ? 0 : i - 4;
    const std::size_t last = std::min(program.size(), i + 4);
    insert_at(program, op, first + static_cast<std::size_t>(below(last - first + 1)));
  }

  std::mt19937 random_;
};

struct Sample {
  std::string title;
  Schedule schedule;
};

// Small schedules of every generator. Options that a generator refuses are left out.
std::vector<Sample> samples_of(const Generator& generator) {
  std::vector<Sample> samples;
  const std::vector<std::pair<int, int>> sizes = {{1, 2}, {2, 1}, {2, 4}, {2, 6}, {3, 6}, {4, 8}};
  for (const auto& [p, m] : sizes)
    for (int v = 1; v <= 3; ++v)
      for (int k = 1; k <= 3; ++k)
        for (const double cap : {1.0, 2.0, 3.0}) {
          const Knobs& knobs = generator.knobs;
          if (!knobs.stages_per_device && v != knobs.default_stages_per_device) continue;
          if (!knobs.slices && k != 1) continue;
          if (!knobs.memory_cap && cap != 1.0) continue;
          GeneratorOptions options;
          options.devices = p;
          options.microbatches = m;
          options.stages_per_device = v;
          options.slices = k;
          options.windows = knobs.windows ? 3 : 1;
          if (knobs.memory_cap) options.memory_cap = cap * p;
          try {
            samples.push_back({fmt::format("{} p={} m={} v={} k={}", generator.name, p, m, v, k),
                               generate_schedule(generator, options)});
          } catch (const UserError&) {
          }
        }
  return samples;
}

struct Counts {
  int valid = 0, stuck = 0, wrong = 0;
  int total() const { return valid + stuck + wrong; }
};

class MutationTest : public testing::Test {
 protected:
  // Runs the form that was proved in two orders, and holds the proof against them.
  void compare(const std::string& title, const Schedule& mutant, bool compute_only,
               Counts& counts) {
    const Validation validation = validate(mutant);
    std::vector<RunResult> runs;
    const auto seed = static_cast<std::uint32_t>(counts.total());
    if (compute_only) {
      runs.push_back(run_schedule(mutant, Transfers::instant));
      runs.push_back(run_schedule(mutant, Transfers::instant, seed));
    }
    if (!validation.lowered.programs.empty()) {
      runs.push_back(run_schedule(validation.lowered, Transfers::rendezvous));
      runs.push_back(run_schedule(validation.lowered, Transfers::rendezvous, seed));
    } else if (!compute_only) {
      runs.push_back(run_schedule(mutant, Transfers::rendezvous));
    }
    const ExecutionEnd end = runs[0].end;
    ++(end == ExecutionEnd::completed ? counts.valid
       : end == ExecutionEnd::stuck   ? counts.stuck
                                      : counts.wrong);
    for (const RunResult& run : runs)
      if (validation.valid() != (run.end == ExecutionEnd::completed)) {
        disagree(title, mutant, validation, run);
        return;
      }
  }

  void disagree(const std::string& title, const Schedule& mutant, const Validation& validation,
                const RunResult& run) {
    std::size_t ops = 0;
    std::string text = title + "\n";
    for (int d = 0; d < mutant.num_devices(); ++d) {
      text += mutant.program_text(d) + "\n";
      ops += mutant.programs[static_cast<std::size_t>(d)].size();
    }
    for (const Problem& problem : validation.problems)
      text += "proof: " + problem.line() + "\n";
    if (validation.valid()) text += "proof: valid\n";
    text += run.end == ExecutionEnd::completed ? "executor: completed\n"
                                               : "executor: " + run.text + "\n";
    disagreements_.emplace(ops, std::move(text));
  }

  void TearDown() override {
    EXPECT_TRUE(disagreements_.empty())
        << disagreements_.size() << " disagreements; the smallest:\n"
        << disagreements_.begin()->second;
  }

  // Mutants of one form of every generator's samples.
  Counts spoil_everything(bool compute_only, int mutants_per_generator) {
    Counts counts;
    std::uint32_t seed = 20240;
    for (const Generator* generator : all_generators()) {
      if (generator->knobs.block) continue;
      const std::vector<Sample> samples = samples_of(*generator);
      EXPECT_GE(samples.size(), 2u) << generator->name;
      Mutator mutator(++seed);
      Counts own;
      for (int n = 0; n < mutants_per_generator && !samples.empty(); ++n) {
        const Sample& sample = samples[static_cast<std::size_t>(n) % samples.size()];
        Schedule mutant =
            compute_only ? sample.schedule : add_communication(sample.schedule).schedule;
        const int mistakes = 1 + mutator.below(3);
        for (int i = 0; i < mistakes; ++i)
          mutator.spoil(mutant);
        if (compute_only && mutant.has_communication()) continue;  // a kind was changed to one
        compare(sample.title, mutant, compute_only, own);
      }
      EXPECT_GT(own.valid, 0) << generator->name;
      EXPECT_GT(own.wrong, own.valid) << generator->name;
      EXPECT_GT(own.stuck, 0) << generator->name;
      counts.valid += own.valid;
      counts.stuck += own.stuck;
      counts.wrong += own.wrong;
    }
    std::printf("mutants: %d valid, %d stuck, %d wrong\n", counts.valid, counts.stuck,
                counts.wrong);
    return counts;
  }

 private:
  std::multimap<std::size_t, std::string> disagreements_;
};

TEST_F(MutationTest, ProofAndExecutorAgreeOnEveryUnspoiltSchedule) {
  Counts counts;
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    for (const Sample& sample : samples_of(*generator)) {
      compare(sample.title, sample.schedule, true, counts);
      compare(sample.title, add_communication(sample.schedule).schedule, false, counts);
    }
  }
  EXPECT_GT(counts.valid, 500);
  EXPECT_EQ(counts.valid, counts.total());
}

TEST_F(MutationTest, ProofAndExecutorAgreeOnMutantsOfComputeOnlySchedules) {
  const Counts counts = spoil_everything(true, 8000);
  EXPECT_GT(counts.total(), 150000);
  EXPECT_GT(counts.valid, 5000);
  EXPECT_GT(counts.stuck, 1000);
}

TEST_F(MutationTest, ProofAndExecutorAgreeOnMutantsOfLoweredSchedules) {
  const Counts counts = spoil_everything(false, 12000);
  EXPECT_GT(counts.total(), 250000);
  EXPECT_GT(counts.valid, 5000);
  EXPECT_GT(counts.stuck, 1000);
}

}  // namespace
}  // namespace sluice
