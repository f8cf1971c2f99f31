#include "sluice/cli/dry_run.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/cli/report.h"
#include "sluice/plan/overlap_advice.h"
#include "sluice/plan/searched_schedule.h"
#include "sluice/run/batch_planner.h"
#include "sluice/run/launch.h"
#include "sluice/run/stash.h"
#include "sluice/runtime/datasets.h"
#include "sluice/runtime/planned_batch.h"
#include "sluice/runtime/preflight.h"

namespace sluice::cli {
namespace {

bool on_threads(const RunPlan& plan) { return plan.config.comm.backend == Backend::threads; }

// The memory of this machine, or of its container. That of a GPU is not asked for: a plan may be of
// another machine.
std::optional<std::int64_t> machine_bytes(const RunPlan& plan) {
  if (plan.on_gpu()) return std::nullopt;
  const std::int64_t installed = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  std::int64_t allowed = 0;
  return limit >> allowed ? std::min(installed, allowed) : installed;
}

// What has to fit into this machine: all ranks if they are threads, else at least the largest.
std::int64_t needed_bytes(const RunPlan& plan, const std::vector<RankMemory>& ranks) {
  std::int64_t all = 0, largest = 0;
  for (const RankMemory& rank : ranks) {
    all += rank.total() * static_cast<std::int64_t>(rank.ranks.size());
    largest = std::max(largest, rank.total());
  }
  return on_threads(plan) ? all : largest;
}

// Why train would not start: weights that do not fit into memory and swap; those of all ranks if
// they are threads, else those of any one. A GPU reports by itself what does not fit.
std::string weights_problem(const RunPlan& plan, const std::vector<RankMemory>& ranks) {
  if (plan.on_gpu()) return "";
  std::int64_t all = 0, least = std::numeric_limits<std::int64_t>::max();
  for (const RankMemory& rank : ranks) {
    all += rank.held() * static_cast<std::int64_t>(rank.ranks.size());
    least = std::min(least, rank.held());
  }
  const std::int64_t fixed = on_threads(plan) ? all : least;
  struct sysinfo system = {};
  const std::int64_t swap =
      ::sysinfo(&system) == 0 ? static_cast<std::int64_t>(system.totalswap * system.mem_unit) : 0;
  const std::int64_t here = *machine_bytes(plan) + swap;
  if (fixed <= here) return "";
  return fmt::format(
      "weights, gradients and optimizer of {} take {} MiB, and this machine has {} MiB: use a "
      "smaller model, narrower types (training.dtype, training.gradient_dtype, "
      "optimizer.state_dtype) or more machines",
      on_threads(plan) ? "all ranks" : "a rank", mebibytes(static_cast<double>(fixed)),
      mebibytes(static_cast<double>(here)));
}

// The peak of the stash over all ranks with fused backwards, if that is less because a layer's
// stash grows at I; else 0. An order that is searched under a cap uses what there is either way.
std::int64_t smaller_fused_peak(const RunPlan& plan) {
  if (plan.recompute() == RecomputeLevel::none || plan.config.parallelism.fuse_backward) return 0;
  if (is_searched(plan.config) && !plan.config.parallelism.device_memory_mib.empty()) return 0;
  const StashBytes block = block_stash(plan, plan.largest_share(0));
  if (block.after_i <= block.after_f) return 0;
  Config fused = plan.config;
  fused.parallelism.fuse_backward = true;
  const auto peak = [](const RunPlan& of) {
    return *std::max_element(of.peak_stash_bytes.begin(), of.peak_stash_bytes.end());
  };
  const std::int64_t smaller = peak(plan_run(fused).plan);
  return smaller < peak(plan) ? smaller : 0;
}

// The cap of a device in bytes; 0: none.
double cap_of(const RunPlan& plan, std::size_t device) {
  const std::vector<double>& caps = plan.config.parallelism.device_memory_mib;
  return caps.empty() ? 0 : caps[caps.size() == 1 ? 0 : device] * (1 << 20);
}

// Why train would not start: the first device that needs more than its cap.
std::string cap_problem(const RunPlan& plan, const std::vector<RankMemory>& ranks) {
  for (std::size_t d = 0; d < ranks.size(); ++d)
    if (const double cap = cap_of(plan, d), need = static_cast<double>(ranks[d].total());
        cap > 0 && need > cap)
      return fmt::format(
          "device {} needs {} MiB, and parallelism.device_memory_mib is {}: raise it, or use "
          "smaller microbatches, more recomputation or more devices",
          d, mebibytes(need), mebibytes(cap));
  return "";
}

std::optional<bool> fits(const DryRun& dry) {
  const RunPlan& plan = dry.run.plan;
  if (!cap_problem(plan, dry.ranks).empty()) return false;
  const bool capped = !plan.config.parallelism.device_memory_mib.empty();
  if (dry.machine_bytes) return needed_bytes(plan, dry.ranks) <= *dry.machine_bytes;
  return capped ? std::optional(true) : std::nullopt;
}

// The degrees of a microbatch's groups, largest first: <4, 2, 1x2>.
std::string groups_text(const std::vector<SequenceGroup>& groups) {
  std::map<int, int, std::greater<>> counts;
  for (const SequenceGroup& group : groups)
    if (!group.sequences.empty()) ++counts[group.degree];
  std::vector<std::string> parts;
  for (const auto& [degree, count] : counts)
    parts.push_back(count == 1 ? fmt::format("{}", degree) : fmt::format("{}x{}", degree, count));
  return fmt::format("<{}>", join(parts, ", "));
}

// "step 1: 0.12 s predicted; 3 microbatches in groups of <4, 2, 1x2>, 2 times <4>".
std::string planned_text(std::int64_t step, const BatchPlanner::Planned& planned) {
  std::vector<std::pair<std::string, int>> runs;
  for (const std::vector<SequenceGroup>& groups : planned.plan.microbatches) {
    std::string text = groups_text(groups);
    if (runs.empty() || runs.back().first != text) runs.emplace_back(std::move(text), 0);
    ++runs.back().second;
  }
  std::vector<std::string> parts;
  for (const auto& [text, count] : runs)
    parts.push_back(count == 1 ? text : fmt::format("{} times {}", count, text));
  return fmt::format("step {}: {:.4g} s predicted; {} in groups of {}", step, planned.seconds,
                     counted(planned.plan.num_microbatches(), "microbatch"), join(parts, ", "));
}

// What the batches after step `resumed` hold, of unequal sequences, where the table has the most
// that any may; and how they are planned.
std::vector<std::string> next_batches(const RunPlan& plan, const Dataset& training,
                                      std::int64_t resumed) {
  constexpr std::int64_t kMostBatches = 16, kMostPlanned = 4, kMostOps = 2'000'000;
  std::int64_t ops = 0;
  for (const Program& program : plan.schedule.programs)
    ops += std::ssize(program);
  const std::int64_t batches = std::min(
      plan.config.training.steps - resumed,
      std::clamp<std::int64_t>(kMostOps / ops, 1, plan.planner ? kMostPlanned : kMostBatches));
  std::vector<std::string> remarks;
  const std::int64_t size = plan.config.training.global_batch_size;
  std::int64_t tokens = 0, stash = 0, sent = 0;
  for (std::int64_t number = resumed + 1; number <= resumed + batches; ++number) {
    const std::vector<std::int64_t> lengths = training.lengths((number - 1) * size, number * size);
    BatchPlan batch;
    if (plan.planner) {
      try {
        BatchPlanner::Planned planned = plan.planner->plan(lengths);
        remarks.push_back(planned_text(number, planned));
        batch = std::move(planned.plan);
      } catch (const UserError& error) {
        throw UserError(fmt::format("the plan of step {}: {}", number, error.what()), error.code());
      }
    } else {
      batch = batch_plan_of(plan, number, lengths);
    }
    RunPlan step = plan_of_step(plan, batch, lengths, 0);
    // Data ranks have about as many tokens as each other: one simulation with the most of any.
    for (int rank = 1; rank < plan.mesh.data(); ++rank) {
      const std::vector<TokenShare> own = token_shares(batch, lengths, rank, plan.mesh.tensor);
      for (std::size_t m = 0; m < own.size(); ++m)
        step.shares[m] = {std::max(step.shares[m].tokens, own[m].tokens),
                          std::max(step.shares[m].degree, own[m].degree)};
    }
    tokens = std::max(tokens, step.largest_share(0).tokens);
    step.peak_stash_bytes = predicted_peaks(step);
    for (const RankMemory& rank : memory_by_rank(step)) {
      stash = std::max(stash, rank.stash);
      sent = std::max(sent, rank.traffic.total());
    }
  }
  remarks.push_back(fmt::format(
      "the {} {} of this data: at most {} in a microbatch of a rank, at most {} MiB of activations "
      "on a rank, and at most {} that a rank sends in a step; the table of MiB has the most that "
      "any batch may need",
      resumed > 0 ? "next" : "first", batches == 1 ? "batch" : fmt::format("{} batches", batches),
      counted(tokens, "token"), mebibytes(static_cast<double>(stash)), counted(sent, "element")));
  return remarks;
}

// What the data and the checkpoint say, where they are there.
std::vector<std::string> check_files(const RunPlan& plan, int rollback) {
  const std::string& path = plan.config.data.path;
  std::error_code ignored;
  const bool there =
      !path.empty() && (std::filesystem::exists(path, ignored) ||
                        std::filesystem::exists(indexed_prefix(path) + ".idx", ignored));
  if (!there) {
    std::vector<std::string> remarks = check_before_run(plan, nullptr, rollback).remarks;
    remarks.push_back(path.empty() ? "data.path is not set: the data was not checked"
                                   : fmt::format("data.path is '{}', which is not here: the data "
                                                 "was not checked",
                                                 path));
    return remarks;
  }
  const Datasets data = open_datasets(plan.config);
  auto [resumed, remarks] = check_before_run(plan, &data.training, rollback);
  if (data.held_out) check_validation_plans(plan, *data.held_out);
  for (const std::string& note : overlong_notes(data))
    remarks.push_back(note);
  if (plan.ragged() && resumed < plan.config.training.steps)
    for (std::string& remark : next_batches(plan, data.training, resumed))
      remarks.push_back(std::move(remark));
  return remarks;
}

void add_remarks(DryRun& dry) {
  const RunPlan& plan = dry.run.plan;
  std::vector<std::string>& out = dry.remarks;
  if (const std::int64_t fused = smaller_fused_peak(plan); fused > 0)
    out.push_back(fmt::format(
        "recompute.level is {}: what I recomputes is kept until its W, so the split backward of {} "
        "keeps up to {} MiB of activations; with parallelism.fuse_backward = true it would be {} "
        "MiB",
        plan.recompute(), plan.schedule.name,
        mebibytes(static_cast<double>(
            *std::max_element(plan.peak_stash_bytes.begin(), plan.peak_stash_bytes.end()))),
        mebibytes(static_cast<double>(fused))));
  const std::int64_t needed = needed_bytes(plan, dry.ranks);
  const std::string weights = weights_problem(plan, dry.ranks);
  if (weights.empty() && dry.machine_bytes && needed > *dry.machine_bytes)
    out.push_back(fmt::format(
        "{} {} MiB, and this machine has {} MiB: use a smaller model, smaller microbatches, more "
        "recomputation or more machines",
        on_threads(plan) ? "all ranks together need" : "the largest rank needs",
        mebibytes(static_cast<double>(needed)),
        mebibytes(static_cast<double>(*dry.machine_bytes))));
  // A run on another machine may be planned here, so these are remarks and no errors.
  for (const std::string& problem :
       {weights, cap_problem(plan, dry.ranks), launch_problem(plan.config.comm, plan.mesh.size())})
    if (!problem.empty()) out.push_back("train would refuse here: " + problem);
}

}  // namespace

DryRun dry_run(const PlannedRun& run, int rollback) {
  DryRun dry{.run = run,
             .ranks = memory_by_rank(run.plan),
             .prediction = predict(run),
             .machine_bytes = machine_bytes(run.plan),
             .fits = std::nullopt,
             .remarks = advised_notes(run)};
  dry.fits = fits(dry);
  const std::vector<std::string> files = check_files(run.plan, rollback);
  dry.remarks.insert(dry.remarks.end(), files.begin(), files.end());
  add_remarks(dry);
  for (std::string& remark : dry.remarks)
    remark = as_flags(remark);
  return dry;
}

void check_memory(const RunPlan& plan) {
  const std::vector<RankMemory> ranks = memory_by_rank(plan);
  for (const std::string& problem : {weights_problem(plan, ranks), cap_problem(plan, ranks)})
    if (!problem.empty()) throw UserError(problem);
}

}  // namespace sluice::cli
