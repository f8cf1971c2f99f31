#include "runtime/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "runtime/gpu_memory.h"
#include "runtime/out_of_memory.h"
#include "runtime/runnable.h"
#include "schedule/transforms/forward_only.h"
#include "schedule/transforms/forward_prefix.h"

namespace sluice {

MeshShape mesh_of(const TrainerOptions& options, const Schedule& schedule) {
  MeshShape mesh = options.mesh;
  mesh.pipeline = schedule.num_devices();
  return mesh;
}

UserError diverged(std::int64_t step, const std::string& what) {
  return UserError(
      fmt::format("step {}: {}: training has diverged; lower optimizer.lr, warm up longer "
                  "(lr_scheduler.warmup_steps) or clip (training.max_norm), and start again; if "
                  "the last checkpoint diverges again, go back with train --rollback 1",
                  step, what),
      ExitCode::diverged);
}

bool head_in_forward(const TrainerOptions& options) {
  // With deferred validation a forward may run before the previous step is settled, so it must not
  // touch the gradients.
  return options.kind.on_gpu() && options.mesh.tensor == 1 && !options.deferred_validation;
}

std::vector<std::int64_t> even_layers(std::int64_t layers, int stages) {
  if (layers < stages)
    throw user_error("{} layers are too few for {} stages: use fewer stages or more layers", layers,
                     stages);
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), layers / stages);
  for (std::int64_t s = 0; s < layers % stages; ++s)
    ++out[static_cast<std::size_t>(s)];
  return out;
}

SliceBounds slice_bounds(const Schedule& schedule, std::int64_t length) {
  SliceBounds bounds = {0};
  const std::int64_t k = schedule.num_slices;
  for (std::int64_t c = 0; c < k; ++c)
    bounds.push_back(schedule.slice_sizes.empty()
                         ? length * (c + 1) / k
                         : bounds.back() + schedule.slice_sizes[static_cast<std::size_t>(c)]);
  if (bounds.back() != length)
    throw user_error(
        "the schedule's slices hold {} tokens and a sequence has {}: change the schedule's "
        "slice_sizes or training.sequence_length",
        bounds.back(), length);
  return bounds;
}

std::map<int, std::unique_ptr<Stage>> make_stages(const TrainerOptions& options,
                                                  const Schedule& schedule, int device,
                                                  const TensorParallel& tensor) {
  const int num_stages = schedule.num_stages();
  if (static_cast<int>(options.layers_per_stage.size()) != num_stages)
    throw user_error(
        "parallelism.layers_per_stage has {} numbers, and the schedule has {} stages: give one "
        "number per stage",
        options.layers_per_stage.size(), num_stages);
  std::map<int, std::unique_ptr<Stage>> stages;
  for (const int stage : schedule.placement.stages_of(device)) {
    const auto listed = options.layers_per_stage.begin();
    StageOptions own;
    own.shape = options.shape;
    own.first_layer = std::accumulate(listed, listed + stage, std::int64_t{0});
    own.end_layer = own.first_layer + options.layers_per_stage[static_cast<std::size_t>(stage)];
    own.embedding = stage == 0;
    own.head = stage == num_stages - 1;
    own.level = options.level;
    own.seed = options.seed;
    own.kind = options.kind;
    own.make_layer = options.make_layer;
    own.tensor = tensor;
    own.head_in_forward = head_in_forward(options);
    own.long_document = options.long_document;
    stages[stage] = std::make_unique<Stage>(own);
  }
  return stages;
}

Trainer::Trainer(const TrainerOptions& options, const Schedule& lowered, const Dataset& data,
                 Communicator& world)
    : options_(options),
      schedule_(lowered),
      data_(data),
      mesh_(world, mesh_of(options, lowered)),
      tensor_group_(mesh_.tensor(), traffic_),
      tensor_(tensor_group_, options.sequence_parallel_norms),
      data_parallel_(mesh_, traffic_, options.gradient_bucket_bytes),
      bounds_(slice_bounds(lowered, options.sequence_length)),
      stages_(make_stages(options, lowered, mesh_.place().pipeline, tensor_)),
      totals_(lowered.placement, mesh_.pipeline()) {
  check_runnable(lowered);
  const int data_ranks = mesh_.shape().data();
  if (options.global_batch_size % (lowered.num_microbatches * data_ranks) != 0)
    throw user_error(
        "a global batch of {} sequences does not divide into {} microbatches on each of {} data "
        "ranks: "
        "change training.global_batch_size or parallelism.num_microbatches",
        options.global_batch_size, lowered.num_microbatches, data_ranks);
  std::map<int, Stage*> local;
  for (const auto& [number, stage] : stages_) {
    local[number] = stage.get();
    for (const Parameter* parameter : stage->parameters()) {
      // A tied weight counts once, as the embedding; the head's copy stays equal to it.
      const bool twice = options.shape.tied_embeddings && parameter->name == "head.weight";
      const Shard& shard = parameter->shard;
      const Weight weight{.name = parameter->name,
                          .value = parameter->value,
                          .gradient = parameter->gradient,
                          .decay = parameter->decay,
                          .counted = shard.counted && !twice,
                          .own = data_parallel_.own_rows(parameter->value.size(0)),
                          .drawn_as = twice ? "embedding.weight" : "",
                          .place = shard.first_element()};
      weights_[number].push_back(weight);
      all_weights_.push_back(weight);
    }
  }
  const Boundary boundary{&tensor_group_, tensor_.sequence_norms(), options.scatter_gather,
                          &traffic_};
  executor_ = std::make_unique<Executor>(lowered, local, mesh_.pipeline(), boundary);
  executor_->set_hooks({.reduce = [this](int stage) { begin_sums(stage); },
                        .poll =
                            [this] {
                              if (open_) totals_.poll();
                            }});
  forwards_ = forward_only(lowered);
  evaluator_ = std::make_unique<Executor>(forwards_, local, mesh_.pipeline(), boundary, true);
  optimizer_ = std::make_unique<Optimizer>(options.optimizer, all_weights_);
  forward_prefix_ =
      closed_forward_prefixes(lowered)[static_cast<std::size_t>(mesh_.place().pipeline)];
  plans_ = make_attention_plans(options, bounds_, data, tensor_.size());
}

std::vector<Parameter*> Trainer::parameters() {
  std::vector<Parameter*> all;
  for (const auto& [number, stage] : stages_)
    for (Parameter* parameter : stage->parameters())
      all.push_back(parameter);
  return all;
}

bool Trainer::holds(int stage, const std::string& name) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) return false;
  for (const Parameter* parameter : found->second->parameters())
    if (name == parameter->name || name.starts_with(parameter->name + "/")) return true;
  return false;
}

GlobalBatch Trainer::load(const Dataset& data, const BatchRange& range) const {
  return load_batch(data, range, schedule_.num_microbatches,
                    {mesh_.place().data, mesh_.shape().data()});
}

void Trainer::begin(GlobalBatch batch, double scale) {
  batch_ = std::move(batch);
  if (options_.kind.on_gpu())
    for (Microbatch& microbatch : batch_.microbatches)
      for (at::Tensor* tensor : {&microbatch.tokens, &microbatch.targets})
        // From pinned memory, so that the copy waits for nothing that the GPU is doing.
        *tensor = tensor->pin_memory().to(options_.kind.device, true);
  for (const auto& [number, stage] : stages_)
    stage->begin_step(bounds_, scale);
}

Executor::DataSource Trainer::batch_source() const {
  return [this](int m) -> const Microbatch& {
    return batch_.microbatches[static_cast<std::size_t>(m)];
  };
}

template <typename Run>
auto Trainer::guarded(const Run& run) {
  try {
    return run();
  } catch (const c10::Error& cause) {
    if (!is_out_of_memory(cause)) {
      mesh_.world().fail(std::current_exception());
      throw;
    }
    std::int64_t stash = 0;
    for (const auto& [number, stage] : stages_)
      stash += stage->stash_bytes();
    const UserError error = out_of_memory(options_, schedule_, mesh_.world(), stash);
    mesh_.world().fail(std::make_exception_ptr(error));
    throw error;
  } catch (...) {
    mesh_.world().fail(std::current_exception());  // before messages in flight are dropped
    throw;
  }
}

double Trainer::local_loss() const {
  double loss = 0;
  for (const auto& [number, stage] : stages_)
    loss += stage->loss();
  return loss;
}

double Trainer::evaluate(const Dataset& held_out, std::int64_t num_samples) {
  SLUICE_CHECK(!open_, "step {} is open", open_->result.number);
  SLUICE_CHECK(num_samples > 0 && num_samples <= held_out.num_samples(), "{} of {} samples",
               num_samples, held_out.num_samples());
  double loss = 0;
  std::int64_t num_targets = 0;
  const std::int64_t batch_size = options_.global_batch_size;
  for (std::int64_t first = 0; first < num_samples; first += batch_size) {
    begin(load(held_out, {first, batch_size, num_samples}), 1);
    guarded([&] {
      return evaluator_->run(batch_source(), bounds_, options_.shape.dim, options_.kind,
                             std::chrono::steady_clock::now());
    });
    loss += local_loss();
    num_targets += batch_.num_targets;
  }
  DeviceTotals mine = device_totals({}, loss, false, mesh_);
  for (const auto& [number, stage] : stages_)
    mine.squares[number] = {};
  totals_.begin(std::move(mine));
  loss = totals_.finish().loss;
  if (num_targets == 0)
    throw UserError(
        fmt::format("none of the {} held-out samples has a token to predict: hold more data out "
                    "(data.validation_fraction), or set validation.interval = 0",
                    num_samples),
        ExitCode::bad_data);
  return loss / static_cast<double>(num_targets);
}

StepResult Trainer::step(std::int64_t number) {
  SLUICE_CHECK(!open_, "step {} is open", open_->result.number);
  std::optional<StepResult> result = advance(number);
  return result ? std::move(*result) : std::move(*settle());
}

std::optional<StepResult> Trainer::advance(std::int64_t number, const std::function<bool()>& stop) {
  // The batch is read before the clock of the step starts.
  const std::int64_t batch_size = options_.global_batch_size;
  GlobalBatch batch = load(data_, {(number - 1) * batch_size, batch_size});
  // The mean is over the targets of the whole global batch, so that packing does not change the
  // gradient.
  const double scale = batch.num_targets > 0 ? 1.0 / static_cast<double>(batch.num_targets) : 0;
  Open taken;
  StepResult& result = taken.result;
  result.number = number;
  result.num_targets = batch.num_targets;
  result.squared_lengths = batch.squared_lengths;
  result.learning_rate = learning_rate(options_.learning_rate, number, options_.warmup_steps,
                                       options_.num_steps, options_.min_lr_ratio);
  begin(std::move(batch), scale);
  if (!open_) {
    mesh_.world().barrier("step");
    origin_ = std::chrono::steady_clock::now();
  }
  std::optional<StepResult> before;
  result.executed = execute(scale, before);
  finish_sums();
  totals_.begin(device_totals(weights_, local_loss(), stop && stop(), mesh_));
  if (options_.deferred_validation) {
    optimizer_->keep();
    update(result, 1);
    taken.updated = true;
  }
  open_ = std::move(taken);
  return options_.deferred_validation ? before : settle();
}

// Runs the program of a step. If the previous step is still open, only the first forwards run
// before it is settled; they run again if its update had to be corrected.
ExecutedStep Trainer::execute(double scale, std::optional<StepResult>& before) {
  const auto start = [&] {
    executor_->start(batch_source(), bounds_, options_.shape.dim, options_.kind, origin_);
  };
  start();
  if (open_) {
    guarded([&] { executor_->run_to(forward_prefix_); });
    const StepTotals totals = totals_.finish();
    const bool again = !totals.finite() || gradient_scale(totals) != 1;
    if (again) {
      guarded([&] { executor_->drop(); });
      for (const auto& [number, stage] : stages_) {
        stage->drop_microbatches();
        stage->begin_step(bounds_, scale);
      }
      start();
    }
    before = close(totals);
  }
  for (const auto& [number, stage] : stages_)
    stage->zero_gradients();
  return guarded([&] { return executor_->finish(); });
}

double Trainer::gradient_scale(const StepTotals& totals) const {
  return clip_scale(totals.gradient_norm(), options_.max_norm);
}

void Trainer::update(const StepResult& result, double scale) {
  optimizer_->step(result.number, result.learning_rate, scale);
  data_parallel_.gather_values(all_weights_);
}

std::optional<StepResult> Trainer::settle() {
  if (!open_) return std::nullopt;
  return close(totals_.finish());
}

StepResult Trainer::close(const StepTotals& totals) {
  Open taken = std::move(*open_);
  open_.reset();
  StepResult& result = taken.result;
  result.loss = totals.loss;
  result.gradient_norm = totals.gradient_norm();
  result.stop = totals.stop > 0;
  const double scale = gradient_scale(totals);
  if (taken.updated && (scale != 1 || !totals.finite())) optimizer_->restore();
  if (!totals.finite()) {
    if (taken.updated) data_parallel_.gather_values(all_weights_);
    throw diverged(result.number,
                   fmt::format("the loss is {} and the gradient norm {}", std::abs(result.loss),
                               std::abs(result.gradient_norm)));
  }
  if (!taken.updated || scale != 1) update(result, scale);
  return std::move(taken.result);
}

// Tensor ranks of a stage add up first, so that data ranks then add up complete gradients.
void Trainer::begin_sums(int stage) {
  sum_shared_gradients(stages_.at(stage)->parameters(), tensor_group_);
  data_parallel_.begin_sums(weights_.at(stage));
  summed_.insert(stage);
}

void Trainer::finish_sums() {
  for (const auto& [number, stage] : stages_)
    if (!summed_.contains(number)) begin_sums(number);
  summed_.clear();
  data_parallel_.finish_sums();
  add_replicas();
  if (options_.shape.tied_embeddings) add_tied();
}

at::Tensor Trainer::exchange(int peer, const at::Tensor& mine, TrafficClass traffic,
                             const char* label) {
  traffic_.add(traffic, mine.numel());
  Communicator& pipeline = mesh_.pipeline();
  // On a GPU the tensor itself is handed over, so it is copied: this rank writes to its own next.
  const at::Tensor given = mine.is_cuda() ? mine.clone() : mine;
  TensorMessage sent = TensorMessage::send(pipeline, peer, given, label);
  TensorMessage theirs =
      TensorMessage::recv(pipeline, peer, mine.sizes().vec(), mine.options(), label);
  sent.wait(pipeline);
  theirs.wait(pipeline);
  return theirs.take();
}

// With two pipes there are two copies of every stage. Both add the gradients of pipe 0 and of pipe
// 1, in this order. From here on only the rows that this rank updates matter.
void Trainer::add_replicas() {
  if (schedule_.num_pipes() == 1) return;
  SLUICE_CHECK(schedule_.num_pipes() == 2, "{} pipes", schedule_.num_pipes());
  for (const auto& [number, weights] : weights_) {
    const int first = schedule_.placement.device_of(0, number);
    const int second = schedule_.placement.device_of(1, number);
    if (first == second) continue;
    const bool is_first = mesh_.place().pipeline == first;
    for (const Weight& weight : weights) {
      at::Tensor mine = weight.own_gradient();
      const at::Tensor theirs =
          exchange(is_first ? second : first, mine, TrafficClass::gradient, "replica gradient");
      mine.copy_(is_first ? mine + theirs : theirs + mine);
    }
  }
}

// Tied embeddings: the gradient of the lookup plus that of the head, on both ends.
void Trainer::add_tied() {
  const auto find = [&](const char* name) {
    at::Tensor found;
    for (const Weight& weight : all_weights_)
      if (weight.name == name) found = weight.own_gradient();
    return found;
  };
  at::Tensor lookup = find("embedding.weight");
  at::Tensor head = find("head.weight");
  if (lookup.defined() && head.defined()) {
    const at::Tensor sum = lookup + head;
    lookup.copy_(sum);
    head.copy_(sum);
    return;
  }
  if (!lookup.defined() && !head.defined()) return;
  const int last = schedule_.num_stages() - 1;
  const int peer = schedule_.placement.device_of(0, lookup.defined() ? last : 0);
  at::Tensor mine = lookup.defined() ? lookup : head;
  const at::Tensor theirs = exchange(peer, mine, TrafficClass::embedding, "tied gradient");
  mine.copy_(lookup.defined() ? mine + theirs : theirs + mine);
}

}  // namespace sluice
