// One rank's part of training: its stages, its optimizer, and the step that all ranks take
// together. The result does not depend on the schedule: gradients are added in the order of
// microbatches, and norms in one canonical order.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/comm/mesh.h"
#include "sluice/comm/tensors/group.h"
#include "sluice/data/dataset.h"
#include "sluice/model/stage.h"
#include "sluice/run/plan.h"
#include "sluice/runtime/attention_plans.h"
#include "sluice/runtime/batches.h"
#include "sluice/runtime/deferral.h"
#include "sluice/runtime/gradient_sums.h"
#include "sluice/runtime/older_weights.h"
#include "sluice/runtime/open_windows.h"
#include "sluice/runtime/step_plans.h"

namespace sluice {

// The stages of a device, by number, or a tensor rank's share of them. The plan outlives them.
std::map<int, std::unique_ptr<Stage>> make_stages(const RunPlan& plan, int device,
                                                  const Machine& machine,
                                                  const TensorParallel& tensor = {},
                                                  const ShardRanks& shards = {});

class Trainer {
 public:
  // REQUIRES: the world has as many ranks as the plan's mesh; plan, data and world outlive it.
  // Every rank calls it.
  Trainer(const RunPlan& plan, const Dataset& data, Communicator& world,
          const Machine& machine = {});

  // Rank 0 gives it the plan of a batch (StepPlans), where batches are planned, before the step.
  void set_on_plan(StepPlans::OnPlan on_plan) { step_plans_.set_on_plan(std::move(on_plan)); }
  // How the last step that was begun dealt its sequences, where they are unequal.
  const BatchPlan& batch_plan() const { return batch_plan_; }

  // Step n, from 1: every rank calls it. Throws UserError (diverged) on all ranks, with the weights
  // as they were, when the loss or the gradient is no longer finite.
  StepResult step(std::int64_t number);

  // The same without waiting for the end, where validation is deferred. advance() takes step n and
  // returns the result of the step before, if that was still open; settle() that of the last one.
  // Otherwise advance() returns the result of step n itself and settle() nothing. `stop` says,
  // after the step's last op, whether this rank was asked to stop. Weights and states are right
  // whenever nothing is open.
  std::optional<StepResult> advance(std::int64_t number, const std::function<bool()>& stop = {});
  std::optional<StepResult> settle();
  // The step that is open, with what is known of it; null: none is.
  const StepResult* open_step() const { return deferral_->open(); }

  // Mean loss per token over the first `num_samples` samples of held-out data, each taken once, by
  // the forwards of the same schedule. The mean is not finite where one of the losses is not. Every
  // rank calls it, with nothing open, and gets the same. Throws UserError (bad_data) where no token
  // has a target. REQUIRES: 1 to held_out.num_samples().
  double evaluate(const Dataset& held_out, std::int64_t num_samples);

  // What is known of weights before the last updates.
  struct Past {
    // Puts the weights before the last k updates in place, of all stages of this rank; false: they
    // are not known, and the newest serve instead.
    std::function<bool(int updates_ago)> older;
    // Puts in place what forwards before the last update used, where that was predicted.
    std::function<void(Parameter&)> predicted;
  };
  // Where steps overlap, and the run goes on behind step `number`: does again what it had done of
  // the steps behind that one. Every rank calls it, with the weights of that step in place.
  void go_on_from(std::int64_t number, const Past& past);
  // Which steps are to be saved when they are done; else nothing older is kept.
  void set_saves(std::function<bool(const StepResult&)> saves) { saves_ = std::move(saves); }
  // What go_on_from needs of this run; null where steps do not overlap.
  const OlderWeights* older() const { return older_ ? &*older_ : nullptr; }

  const std::string& schedule_name() const { return plan_.schedule.name; }
  // Whether forwards use predicted weights.
  bool predicts() const { return plan_.schedule.weights == WeightVersions::predicted; }

  // The gradient norm of the last step, by which the next one may clip; 0: there was none.
  double last_norm() const { return deferral_->last_norm(); }
  void set_last_norm(double norm) { deferral_->set_last_norm(norm); }

  // Where steps overlap: takes in what is under way between ranks, so that nothing is when the run
  // ends, or something else runs. Every rank calls it.
  void take_in();

  // This rank's parameters in canonical order. Sharded ones have no memory between steps.
  std::vector<Parameter*> parameters();
  // The same with the rows that it updates; these are always here.
  const std::vector<Weight>& weights() const { return all_weights_; }
  Optimizer& optimizer() { return *optimizer_; }
  // Whether this rank holds the stage and the name (of a weight, or of a state of it) is of it.
  bool holds(int stage, const std::string& name);
  const Mesh& mesh() const { return mesh_; }
  const OpenWindows* windows() const { return windows_ ? &*windows_ : nullptr; }
  const AttentionPlans& plans() const { return plans_; }  // this rank's
  // What this rank has sent so far.
  const Traffic& traffic() const { return traffic_; }

 private:
  void begin_windows(std::int64_t updates);
  OpenWindows::Predict prediction();
  void open_windows(std::int64_t first, std::int64_t last);
  void run_early(int part, std::int64_t window);
  StepResult overlapping_step(std::int64_t number, const std::function<bool()>& stop);
  GlobalBatch on_device(GlobalBatch batch) const;
  double learning_rate_of(std::int64_t number) const;
  TensorChannel& boundaries() { return boundaries_ ? *boundaries_ : *pipeline_; }
  void collect_weights();
  void check_matrices() const;
  void collect_owned();
  std::vector<Weight> updated_weights() const;  // of the stages that this rank updates
  void make_groups();
  // Lets the stages begin a pass over `batch`, every target's loss counting `scale`.
  void begin(GlobalBatch batch, double scale);
  GlobalBatch load(const Dataset& data, const BatchRange& range, const BatchPlan& plan);
  // How the sequences of a validation are dealt. All equal ones need no plan.
  BatchPlan dealt(const Dataset& data, const BatchRange& range);
  // What runs a step with so many microbatches, made when it is first needed.
  struct Execution {
    std::unique_ptr<Executor> executor;
    std::size_t forward_prefix = 0;  // ops that can be run before the step before is settled
  };
  Execution& execution_of(int num_microbatches);
  // What runs the forwards of a validation with so many microbatches, likewise.
  struct Evaluation {
    Schedule forwards;
    std::unique_ptr<Executor> executor;
  };
  Executor& evaluator_of(int num_microbatches);
  Boundary boundary();
  Executor::DataSource batch_source() const;
  // Returns what `run` returns. If it throws, the other ranks are told first.
  template <typename Run>
  auto guarded(const Run& run);
  ExecutedStep execute(Execution& execution, double scale, std::optional<StepResult>& before);
  double local_loss() const;
  double all_to_all_seconds() const;
  std::map<int, double> update_seconds() const;

  const RunPlan& plan_;
  TensorKind kind_;
  const Dataset& data_;
  Mesh mesh_;
  Traffic traffic_;
  TensorGroup tensor_group_;
  TensorParallel tensor_;
  DataParallel data_parallel_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  std::map<int, Stage*> local_;  // the same
  StageWeights weights_;
  StageWeights owned_;  // of them those of the stages that this device owns: they count in the norm
  std::vector<Weight> all_weights_;  // in canonical order
  std::unique_ptr<TensorChannel> pipeline_;
  std::unique_ptr<TensorChannel> boundaries_;  // null: the same
  SequenceGroups groups_;                      // that this rank may be in
  StepPlans step_plans_;
  BatchPlan batch_plan_;  // of the step
  std::map<int, Execution> executions_;
  std::map<int, Evaluation> evaluations_;
  std::unique_ptr<StageCopies> copies_;
  std::unique_ptr<Optimizer> optimizer_;
  AttentionPlans plans_;
  TotalsChain totals_;
  std::unique_ptr<GradientSums> sums_;
  std::unique_ptr<Deferral> deferral_;
  std::optional<OpenWindows> windows_;  // where steps overlap
  const Past* past_ = nullptr;          // while ops of a resumed run are computed again
  std::optional<OlderWeights> older_;
  std::function<bool(const StepResult&)> saves_;
  GlobalBatch batch_;                             // of the step
  std::chrono::steady_clock::time_point origin_;  // of the times of a step
};

}  // namespace sluice
