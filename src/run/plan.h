// The run plan: what a training run is, as one value. Made once from a configuration; memory,
// traffic, work and time are functions of it, the planner searches over it, and the trainer carries
// it out. It is pure: nothing that can be known before a run needs torch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/config/config.h"
#include "sluice/config/resolve.h"
#include "sluice/cost/measured_on.h"
#include "sluice/cost/parameters.h"
#include "sluice/run/batch_plan_file.h"
#include "sluice/run/mesh_shape.h"
#include "sluice/schedule/endless.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// Batches as they were planned beforehand (flexsp.plan_file).
struct BatchPlans {
  std::string name;  // the file
  PlannedBatches steps;
  // What data ranks may have of the microbatches, counted once (count_shares, run/step_kinds.h): of
  // any microbatch; and, by number of microbatches, lists by microbatch, one for each way in which
  // steps and ranks differ.
  TokenShare most;
  std::map<int, std::vector<std::vector<TokenShare>>> shares;
  // Steps may have different numbers of microbatches: the schedule of each, lowered and proved, by
  // its number. The run's own is not among them.
  std::map<int, Schedule> schedules;
};

struct BatchPlanner;  // run/batch_planner.h

struct RunPlan {
  Config config;  // resolved
  ModelShape shape;
  MeshShape mesh;     // its pipeline is the schedule's
  Schedule schedule;  // lowered and proved; more than one slice: with the sizes of all
  // Where training goes on from one update to the next, its steps; `schedule` is then the first few
  // windows. Null: a step ends before the next begins.
  std::shared_ptr<const EndlessSchedule> endless;
  std::vector<std::int64_t> layers_per_stage;  // sums to shape.layers
  // What each device stashes at its peak, as the simulator predicts it (plan/plan_run.h). Empty:
  // not predicted.
  std::vector<std::int64_t> peak_stash_bytes;
  // Where sequences are unequal: plans to replay; or else what plans every batch (flexsp.enabled),
  // which who starts the run puts here. Neither: batches are dealt (deal_longest_first).
  std::shared_ptr<const BatchPlans> batch_plans;
  std::shared_ptr<const BatchPlanner> planner;
  // Where batches are planned: the most that a rank may have of a microbatch.
  std::optional<TokenShare> most_planned;
  // Of one step of unequal sequences on one data rank: what it has of each microbatch. Empty: every
  // microbatch is as large as it can be.
  std::vector<TokenShare> shares;

  // Sequences have lengths of their own, up to the configured one.
  bool ragged() const { return is_ragged(config); }
  // Sequences of a microbatch. Of unequal ones: how many of the configured length have as many
  // tokens as a microbatch may have.
  std::int64_t sequences() const;
  // Where the slices of a sequence begin and end: {0, length} for a whole one.
  std::vector<std::int64_t> slice_bounds() const;
  // What a rank has of a slice, over all sequences of a microbatch; the most of any microbatch.
  TokenShare share(int microbatch, int slice) const;
  TokenShare largest_share(int slice) const;
  // Of one step, in each copy of the pipeline.
  int num_microbatches() const { return schedule.window_size(); }
  // What a microbatch holds, in words.
  std::string microbatch_text() const;
  // The schedule of steps with so many microbatches. REQUIRES: there is one.
  const Schedule& schedule_of(int num_microbatches) const;
  bool has_schedule(int num_microbatches) const;
  StageLayers layers_of(int stage) const;
  // The stages of a device, ascending, each once: with two pipes it may hold both copies of one.
  std::vector<int> stages_of(int device) const;

  RecomputeLevel recompute() const { return config.recompute.level; }
  bool sliced() const { return schedule.num_slices > 1; }
  std::int64_t element_bytes() const { return bytes_of(config.training.dtype); }
  std::int64_t gradient_bytes() const { return bytes_of(config.training.gradient_dtype); }
  bool on_gpu() const { return config.cluster.device == DeviceKind::cuda; }
  // Tensor ranks divide the tokens between the matmuls.
  bool sequence_norms() const {
    return config.parallelism.sequence_parallel_norms && mesh.tensor > 1;
  }
  // Limits of a batch plan.
  BatchLimits batch_limits() const {
    return {config.training.global_batch_size, mesh.data(), shape.heads / mesh.tensor};
  }
  // Of so many tokens, those that a tensor rank has between the matmuls. REQUIRES: they divide.
  std::int64_t own_tokens(std::int64_t tokens) const {
    return sequence_norms() ? tokens / mesh.tensor : tokens;
  }
  // Shard ranks divide the weights themselves (run/sharding.h).
  bool sharded() const {
    return config.parallelism.sharding == Sharding::parameters && mesh.shard > 1;
  }
  // Tensor ranks divide what is sent to the next stage.
  bool scatter() const { return config.parallelism.scatter_gather && mesh.tensor > 1; }
  // Each stage updates by itself, before the norm of all gradients can be known: it clips by that
  // of the step before.
  bool clips_by_previous_norm() const { return endless && schedule.updates_by_stage; }
  // The head adds to its weights' gradients in F. With deferred validation, or where steps overlap,
  // a forward may run before the step before is settled, so it must not touch the gradients.
  bool head_in_forward() const {
    return on_gpu() && mesh.tensor == 1 && !config.parallelism.deferred_validation && !endless;
  }
};

// The plan of a resolved configuration for a schedule that was lowered and proved. Throws UserError
// where they do not fit: microbatches, devices, stages, slices, or a schedule that the trainer
// cannot run. REQUIRES: layers_per_stage is even or a list; resolve `auto` before calling this.
RunPlan make_plan(const Config& config, Schedule lowered);

// Gives the plan a schedule that was lowered and proved. Throws UserError for one that the trainer
// cannot run.
void set_schedule(RunPlan& plan, Schedule lowered);

// Layers dealt evenly: the first (layers mod stages) stages get one more. Throws UserError when a
// stage would have none.
std::vector<std::int64_t> even_layers(std::int64_t layers, int stages);

MeshShape mesh_of(const Config& config);

// What a profile of this run is measured on.
MeasuredOn measured_on(const RunPlan& plan);

}  // namespace sluice
