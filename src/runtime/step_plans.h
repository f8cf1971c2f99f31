// How the sequences of each step are dealt, on every rank: as a file says, longest first, or as
// rank 0 plans it. Lengths are known without tokens, so rank 0 plans the next step in a thread of
// its own while this one trains.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/data/dataset.h"
#include "sluice/run/plan.h"
#include "sluice/runtime/step_result.h"

namespace sluice {

struct StepPlan {
  BatchPlan batch;                   // no microbatches: the sequences are equal
  std::optional<Planning> planning;  // on rank 0, where it is planned
};

class StepPlans {
 public:
  // Rank 0 gives it the line of a plan (run/batch_plan_file.h) before the step.
  using OnPlan = std::function<void(const std::string& line)>;

  // They outlive it.
  StepPlans(const RunPlan& plan, const Dataset& data, Communicator& world)
      : plan_(plan), data_(data), world_(world) {}

  void set_on_plan(OnPlan on_plan) { on_plan_ = std::move(on_plan); }

  // The plan of a step, from 1. Every rank calls it, and all get the same. Throws UserError where
  // there is none: of the planner on rank 0 alone.
  StepPlan take(std::int64_t step);

  // How a validation deals sequences of these lengths: planned as those of a step are, where the
  // run plans its batches, else longest first. Every rank calls it, and all get the same. Throws
  // UserError on rank 0 where they cannot be planned. REQUIRES: sequences are unequal.
  BatchPlan validation(std::span<const std::int64_t> lengths);

 private:
  struct Made {
    std::string line;
    double predicted_s = 0, plan_s = 0;
  };
  struct Ahead {
    std::int64_t step = 0;
    std::future<Made> made;
  };
  std::vector<std::int64_t> lengths(std::int64_t step) const;
  Made make(std::int64_t step) const;
  Made made(std::int64_t step, std::span<const std::int64_t> batch) const;
  void share(std::string& line) const;
  void begin(std::int64_t step);
  std::string planned_line(std::int64_t step, std::optional<Planning>& planning);

  const RunPlan& plan_;
  const Dataset& data_;
  Communicator& world_;
  OnPlan on_plan_;
  Ahead ahead_;                                                 // on rank 0
  std::map<std::vector<std::int64_t>, BatchPlan> validations_;  // by lengths: every one is the same
};

}  // namespace sluice
