// One rank's side of training: its stages, its optimizer, and the step that every rank takes
// together. The result does not depend on the schedule: gradients are added in the order of
// microbatches, norms in one canonical order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "comm/tensors/group.h"
#include "data/dataset.h"
#include "model/stage.h"
#include "optim/optimizer.h"
#include "runtime/batches.h"
#include "runtime/executor.h"
#include "schedule/schedule.h"

namespace sluice {

struct TrainerOptions {
  ModelShape shape;
  std::vector<std::int64_t> layers_per_stage;  // sums to shape.layers
  RecomputeLevel level = RecomputeLevel::none;
  at::ScalarType dtype = at::kFloat;
  std::uint64_t seed = 0;
  std::int64_t global_batch_size = 0;  // sequences; a multiple of the number of microbatches
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
};

struct StepResult {
  double loss = 0;           // mean over all target tokens of the global batch
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t num_targets = 0;  // tokens with a loss in the global batch
  ExecutedStep executed;         // this rank's
};

// The mesh of the options with the schedule's pipeline.
MeshShape mesh_of(const TrainerOptions& options, const Schedule& schedule);

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
  // unchanged, when the loss or the gradient is no longer finite.
  StepResult step(std::int64_t number);

  // Mean loss per token over the first `num_batches` global batches of held-out data, by the
  // forwards of the same schedule. Every rank calls it.
  double evaluate(const Dataset& held_out, std::int64_t num_batches);

  // This rank's parameters in canonical order.
  std::vector<Parameter*> parameters();
  Optimizer& optimizer() { return *optimizer_; }
  // Whether this rank holds the stage and the name (of a weight, or of a state of it) is of it.
  bool holds(int stage, const std::string& name);
  const Mesh& mesh() const { return mesh_; }
  // What this rank has handed to others so far.
  const Traffic& traffic() const { return traffic_; }

 private:
  std::vector<Weight> weights();
  // Lets the stages begin a pass over `batch`, every target's loss counting `scale`.
  void begin(GlobalBatch batch, double scale);
  ExecutedStep execute(Executor& executor);
  double local_loss() const;
  void add_replicas();
  void add_tied();
  void exchange(int peer, const at::Tensor& mine, at::Tensor& theirs, const char* label);

  TrainerOptions options_;
  const Schedule& schedule_;
  const Dataset& data_;
  Mesh mesh_;
  Traffic traffic_;
  TensorGroup tensor_group_;
  TensorParallel tensor_;
  SliceBounds bounds_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Executor> executor_;
  Schedule forwards_;
  std::unique_ptr<Executor> evaluator_;
  std::unique_ptr<Optimizer> optimizer_;
  GlobalBatch batch_;  // of the step
};

}  // namespace sluice
