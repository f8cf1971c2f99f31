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
#include <set>
#include <vector>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/tensors/group.h"
#include "data/dataset.h"
#include "model/stage.h"
#include "optim/data_parallel.h"
#include "optim/gradient_norm.h"
#include "optim/optimizer.h"
#include "runtime/attention_plans.h"
#include "runtime/batches.h"
#include "runtime/executor.h"
#include "schedule/schedule.h"

namespace sluice {

struct TrainerOptions {
  ModelShape shape;
  std::vector<std::int64_t> layers_per_stage;  // sums to shape.layers
  RecomputeLevel level = RecomputeLevel::none;
  TensorKind kind = {};
  std::uint64_t seed = 0;
  // Sequences; a multiple of the number of microbatches of all data ranks.
  std::int64_t global_batch_size = 0;
  std::int64_t sequence_length = 0;
  OptimizerOptions optimizer;
  double learning_rate = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t num_steps = 1;
  double min_lr_ratio = 0.1;
  double max_norm = 0;  // 0: no clipping
  LayerFactory make_layer = make_block;
  MeshShape mesh;  // its pipeline is the schedule's
  bool sequence_parallel_norms = false;
  bool scatter_gather = true;
  std::int64_t gradient_bucket_bytes = 25 << 20;
  bool deferred_validation = false;
  // On a GPU, packed documents of at least this many tokens are computed one by one; 0: none is.
  std::int64_t long_document = kLongDocument;
};

struct StepResult {
  std::int64_t number = 0;
  double loss = 0;           // mean over all target tokens of the global batch
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t num_targets = 0;  // tokens with a loss in the global batch
  double squared_lengths = 0;    // of its documents (GlobalBatch)
  ExecutedStep executed;         // this rank's
  bool stop = false;             // some rank was asked to stop before the end of the step
};

// The mesh of the options with the schedule's pipeline.
MeshShape mesh_of(const TrainerOptions& options, const Schedule& schedule);

// The error of a run in which a number is no longer finite; `what` says which.
UserError diverged(std::int64_t step, const std::string& what);

// Whether the head adds to its weights' gradients in F (see Head).
bool head_in_forward(const TrainerOptions& options);

// Layers dealt evenly: the first (layers mod stages) stages get one more. Throws UserError when a
// stage would have none.
std::vector<std::int64_t> even_layers(std::int64_t layers, int stages);

// Where the schedule's slices of a sequence begin and end. Throws UserError unless they add up to
// its length.
SliceBounds slice_bounds(const Schedule& schedule, std::int64_t length);

// The stages of a device, by number, or a tensor rank's share of them. Throws UserError where the
// options do not fit the schedule.
std::map<int, std::unique_ptr<Stage>> make_stages(const TrainerOptions& options,
                                                  const Schedule& schedule, int device,
                                                  const TensorParallel& tensor = {});

class Trainer {
 public:
  // REQUIRES: `lowered` proved; the world has as many ranks as the mesh; schedule, data and world
  // outlive it. Every rank calls it.
  Trainer(const TrainerOptions& options, const Schedule& lowered, const Dataset& data,
          Communicator& world);

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
  const StepResult* open_step() const { return open_ ? &open_->result : nullptr; }

  // Mean loss per token over the first `num_samples` samples of held-out data, each taken once, by
  // the forwards of the same schedule. The mean is not finite where one of the losses is not. Every
  // rank calls it, with nothing open, and gets the same. Throws UserError (bad_data) where no token
  // has a target. REQUIRES: 1 to held_out.num_samples().
  double evaluate(const Dataset& held_out, std::int64_t num_samples);

  // This rank's parameters in canonical order.
  std::vector<Parameter*> parameters();
  // The same with the rows that it updates.
  const std::vector<Weight>& weights() const { return all_weights_; }
  Optimizer& optimizer() { return *optimizer_; }
  // Whether this rank holds the stage and the name (of a weight, or of a state of it) is of it.
  bool holds(int stage, const std::string& name);
  const Mesh& mesh() const { return mesh_; }
  const AttentionPlans& plans() const { return plans_; }  // this rank's
  // What this rank has sent so far.
  const Traffic& traffic() const { return traffic_; }

 private:
  // A step whose totals (loss, gradient norm) are not known yet.
  struct Open {
    StepResult result;
    bool updated = false;  // already, as if there were nothing to clip
  };

  // Lets the stages begin a pass over `batch`, every target's loss counting `scale`.
  void begin(GlobalBatch batch, double scale);
  GlobalBatch load(const Dataset& data, const BatchRange& range) const;
  Executor::DataSource batch_source() const;
  // Returns what `run` returns. If it throws, the other ranks are told first.
  template <typename Run>
  auto guarded(const Run& run);
  ExecutedStep execute(double scale, std::optional<StepResult>& before);
  double local_loss() const;
  void begin_sums(int stage);
  void finish_sums();
  double gradient_scale(const StepTotals& totals) const;  // to clip them
  // Ends the open step: leaves the weights as these totals want them, or throws.
  StepResult close(const StepTotals& totals);
  void update(const StepResult& result, double scale);
  void add_replicas();
  void add_tied();
  at::Tensor exchange(int peer, const at::Tensor& mine, TrafficClass traffic, const char* label);

  TrainerOptions options_;
  const Schedule& schedule_;
  const Dataset& data_;
  Mesh mesh_;
  Traffic traffic_;
  TensorGroup tensor_group_;
  TensorParallel tensor_;
  DataParallel data_parallel_;
  SliceBounds bounds_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  std::map<int, std::vector<Weight>> weights_;  // by stage
  std::vector<Weight> all_weights_;             // in canonical order
  std::unique_ptr<Executor> executor_;
  Schedule forwards_;
  std::unique_ptr<Executor> evaluator_;
  std::unique_ptr<Optimizer> optimizer_;
  AttentionPlans plans_;
  std::size_t forward_prefix_ = 0;  // ops that can be run before the step before is settled
  TotalsChain totals_;
  std::optional<Open> open_;
  std::set<int> summed_;                          // stages whose gradients are being added up
  GlobalBatch batch_;                             // of the step
  std::chrono::steady_clock::time_point origin_;  // of the times of a step
};

}  // namespace sluice
