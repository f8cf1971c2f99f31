#include "sluice/runtime/step_plans.h"

#include <fmt/format.h>

#include <chrono>

#include "sluice/base/error.h"
#include "sluice/run/batch_planner.h"
#include "sluice/runtime/files/sha256.h"
#include "sluice/runtime/planned_batch.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::vector<std::int64_t> StepPlans::lengths(std::int64_t step) const {
  const std::int64_t size = plan_.config.training.global_batch_size;
  return data_.lengths((step - 1) * size, step * size);
}

StepPlans::Made StepPlans::made(std::int64_t step, std::span<const std::int64_t> batch) const {
  const auto start = Clock::now();
  BatchPlanner::Planned planned = plan_.planner->plan(batch);
  Made made;
  made.line = batch_plan_line(step, {std::move(planned.plan), sha256_hex(lengths_text(batch))});
  made.predicted_s = planned.seconds;
  made.plan_s = seconds_since(start);
  return made;
}

StepPlans::Made StepPlans::make(std::int64_t step) const {
  try {
    return made(step, lengths(step));
  } catch (const UserError& error) {
    throw UserError(fmt::format("the plan of step {}: {}", step, error.what()), error.code());
  }
}

void StepPlans::begin(std::int64_t step) {
  ahead_ = {step, std::async(std::launch::async, [this, step] { return make(step); })};
}

// On every rank; `planning` on rank 0.
std::string StepPlans::planned_line(std::int64_t step, std::optional<Planning>& planning) {
  std::string line;
  if (world_.rank() == 0) {
    const auto start = Clock::now();
    if (!ahead_.made.valid() || ahead_.step != step) begin(step);
    Made made = ahead_.made.get();
    planning = {made.predicted_s, made.plan_s, seconds_since(start)};
    line = std::move(made.line);
    if (step < plan_.config.training.steps) begin(step + 1);
  }
  share(line);
  return line;
}

// Rank 0's, to all.
void StepPlans::share(std::string& line) const {
  std::uint64_t size = line.size();
  world_.broadcast(0, std::as_writable_bytes(std::span(&size, 1)), "batch plan");
  line.resize(size);
  world_.broadcast(0, std::as_writable_bytes(std::span(line)), "batch plan");
}

BatchPlan StepPlans::validation(std::span<const std::int64_t> lengths) {
  if (!plan_.planner)
    return deal_longest_first(lengths, plan_.num_microbatches(), plan_.mesh.data());
  const auto [known, is_new] = validations_.try_emplace({lengths.begin(), lengths.end()});
  if (!is_new) return known->second;
  constexpr std::int64_t kNumber = 1;  // a line has one; of a validation it says nothing
  std::string line;
  if (world_.rank() == 0) try {
      line = made(kNumber, lengths).line;
    } catch (const UserError& error) {
      throw UserError(
          fmt::format("the plan of a validation batch: {}; or set validation.interval = 0",
                      error.what()),
          error.code());
    }
  share(line);
  BatchLimits limits = plan_.batch_limits();
  limits.num_sequences = std::ssize(lengths);  // the last batch may be smaller
  known->second = parse_batch_plans(line, "the batch planner", limits).at(kNumber).plan;
  return known->second;
}

StepPlan StepPlans::take(std::int64_t step) {
  StepPlan out;
  if (!plan_.ragged()) return out;
  if (!plan_.planner) {
    out.batch = batch_plan_of(plan_, step, lengths(step));
    return out;
  }
  // All ranks, the first one, too, read what a replay would read.
  const std::string line = planned_line(step, out.planning);
  out.batch = parse_batch_plans(line, "the batch planner", plan_.batch_limits()).at(step).plan;
  if (on_plan_ && world_.rank() == 0) on_plan_(line);
  return out;
}

}  // namespace sluice
