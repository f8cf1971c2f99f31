#include "runtime/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "optim/gradient_norm.h"
#include "schedule/transforms/forward_only.h"

namespace sluice {

MeshShape mesh_of(const TrainerOptions& options, const Schedule& schedule) {
  MeshShape mesh = options.mesh;
  mesh.pipeline = schedule.num_devices();
  return mesh;
}

std::vector<std::int64_t> even_layers(std::int64_t layers, int stages) {
  if (layers < stages)
    throw user_error("{} layers cannot be dealt to {} stages: use fewer stages or more layers",
                     layers, stages);
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
        "the schedule's slices have {} tokens and the sequence has {}: make them equal",
        bounds.back(), length);
  return bounds;
}

std::map<int, std::unique_ptr<Stage>> make_stages(const TrainerOptions& options,
                                                  const Schedule& schedule, int device,
                                                  const TensorParallel& tensor) {
  const int num_stages = schedule.num_stages();
  if (static_cast<int>(options.layers_per_stage.size()) != num_stages)
    throw user_error("layers are listed for {} stages, and {} has {}",
                     options.layers_per_stage.size(), schedule.name, num_stages);
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
    own.dtype = options.dtype;
    own.make_layer = options.make_layer;
    own.tensor = tensor;
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
      bounds_(slice_bounds(lowered, options.sequence_length)),
      stages_(make_stages(options, lowered, mesh_.place().pipeline, tensor_)) {
  if (options.global_batch_size % lowered.num_microbatches != 0)
    throw user_error("a global batch of {} sequences does not divide into {} microbatches",
                     options.global_batch_size, lowered.num_microbatches);
  std::map<int, Stage*> local;
  for (const auto& [number, stage] : stages_)
    local[number] = stage.get();
  const Boundary boundary{&tensor_group_, tensor_.sequence_norms(), options.scatter_gather,
                          &traffic_};
  executor_ = std::make_unique<Executor>(lowered, local, mesh_.pipeline(), boundary);
  forwards_ = forward_only(lowered);
  evaluator_ = std::make_unique<Executor>(forwards_, local, mesh_.pipeline(), boundary, true);
  optimizer_ = std::make_unique<Optimizer>(options.optimizer, weights());
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

std::vector<Weight> Trainer::weights() {
  std::vector<Weight> out;
  for (const Parameter* parameter : parameters())
    out.push_back({parameter->name, parameter->value, parameter->gradient, parameter->decay,
                   parameter->shard.counted});
  return out;
}

void Trainer::begin(GlobalBatch batch, double scale) {
  batch_ = std::move(batch);
  for (const auto& [number, stage] : stages_)
    stage->begin_step(bounds_, scale);
}

ExecutedStep Trainer::execute(Executor& executor) {
  const auto data = [this](int m) -> const Microbatch& {
    return batch_.microbatches[static_cast<std::size_t>(m)];
  };
  try {
    return executor.run(data, bounds_, options_.shape.dim, options_.dtype,
                        std::chrono::steady_clock::now());
  } catch (...) {
    mesh_.world().fail(std::current_exception());  // before the messages under way are dropped
    throw;
  }
}

double Trainer::local_loss() const {
  double loss = 0;
  for (const auto& [number, stage] : stages_)
    loss += stage->loss();
  return loss;
}

double Trainer::evaluate(const Dataset& held_out, std::int64_t num_batches) {
  double loss = 0;
  std::int64_t num_targets = 0;
  for (std::int64_t number = 0; number < num_batches; ++number) {
    begin(load_batch(held_out, number * options_.global_batch_size, options_.global_batch_size,
                     schedule_.num_microbatches),
          1);
    execute(*evaluator_);
    loss += local_loss();
    num_targets += batch_.num_targets;
  }
  loss = total({}, mesh_.place().tensor == 0 ? loss : 0, mesh_.world()).loss;
  return num_targets > 0 ? loss / static_cast<double>(num_targets) : 0;
}

StepResult Trainer::step(std::int64_t number) {
  // Read before the clock starts.
  GlobalBatch batch = load_batch(data_, (number - 1) * options_.global_batch_size,
                                 options_.global_batch_size, schedule_.num_microbatches);
  // Over the targets of the whole global batch, so that no packing changes the gradient.
  const double scale = batch.num_targets > 0 ? 1.0 / static_cast<double>(batch.num_targets) : 0;
  for (const auto& [stage_number, stage] : stages_)
    stage->zero_gradients();
  StepResult result;
  result.num_targets = batch.num_targets;
  begin(std::move(batch), scale);
  mesh_.world().barrier("step");
  result.executed = execute(*executor_);
  const double loss = mesh_.place().tensor == 0 ? local_loss() : 0;
  sum_shared_gradients(parameters(), tensor_group_);
  add_replicas();
  if (options_.shape.tied_embeddings) add_tied();

  // A tied weight counts once: as the embedding's.
  std::vector<Weight> counted = weights();
  if (options_.shape.tied_embeddings)
    std::erase_if(counted, [](const Weight& weight) { return weight.name == "head.weight"; });
  std::erase_if(counted, [&](const Weight& weight) { return !weight.counted; });
  for (Weight& weight : counted)
    weight.name += fmt::format("#{}", mesh_.place().tensor);
  const StepTotals totals = total(block_sums(counted), loss, mesh_.world());
  result.loss = totals.loss;
  result.gradient_norm = totals.gradient_norm;
  // Before the update: the weights stay as they were.
  if (!std::isfinite(totals.loss) || !std::isfinite(totals.gradient_norm))
    throw UserError(
        fmt::format(
            "step {}: the loss is {} and the gradient norm {}: training has diverged; lower "
            "optimizer.lr, warm up longer (lr_scheduler.warmup_steps) or clip "
            "(training.max_norm), and start again: nothing saved before is changed",
            number, std::abs(totals.loss), std::abs(totals.gradient_norm)),
        ExitCode::diverged);
  const double clip = options_.max_norm > 0 && totals.gradient_norm > options_.max_norm
                          ? options_.max_norm / totals.gradient_norm
                          : 1;
  result.learning_rate = learning_rate(options_.learning_rate, number, options_.warmup_steps,
                                       options_.num_steps, options_.min_lr_ratio);
  optimizer_->step(number, result.learning_rate, clip);
  return result;
}

void Trainer::exchange(int peer, const at::Tensor& mine, at::Tensor& theirs, const char* label) {
  const auto bytes = [](const at::Tensor& tensor) {
    return std::span<std::byte>(static_cast<std::byte*>(tensor.mutable_data_ptr()),
                                tensor.nbytes());
  };
  Communicator& pipeline = mesh_.pipeline();
  Request requests[] = {pipeline.send(peer, bytes(mine), label),
                        pipeline.recv(peer, bytes(theirs), label)};
  pipeline.wait_all(requests);
}

// Two pipes keep two copies of every stage: both add the gradients of pipe 0 and pipe 1, in this
// order.
void Trainer::add_replicas() {
  if (schedule_.num_pipes() == 1) return;
  SLUICE_CHECK(schedule_.num_pipes() == 2, "{} pipes", schedule_.num_pipes());
  for (const auto& [number, stage] : stages_) {
    const int first = schedule_.placement.device_of(0, number);
    const int second = schedule_.placement.device_of(1, number);
    if (first == second) continue;
    const bool is_first = mesh_.place().pipeline == first;
    for (Parameter* parameter : stage->parameters()) {
      const at::Tensor mine = parameter->gradient.contiguous();
      at::Tensor theirs = at::empty_like(mine);
      exchange(is_first ? second : first, mine, theirs, "replica gradient");
      parameter->gradient.copy_(is_first ? mine + theirs : theirs + mine);
    }
  }
}

// The lookup's gradient plus the head's, on both ends.
void Trainer::add_tied() {
  const auto find = [&](const char* name) -> Parameter* {
    for (Parameter* parameter : parameters())
      if (parameter->name == name) return parameter;
    return nullptr;
  };
  Parameter* lookup = find("embedding.weight");
  Parameter* head = find("head.weight");
  if (lookup && head) {
    const at::Tensor sum = lookup->gradient + head->gradient;
    lookup->gradient.copy_(sum);
    head->gradient.copy_(sum);
    return;
  }
  if (!lookup && !head) return;
  const int last = schedule_.num_stages() - 1;
  const int peer = schedule_.placement.device_of(0, lookup ? last : 0);
  Parameter* own = lookup ? lookup : head;
  const at::Tensor mine = own->gradient.contiguous();
  at::Tensor theirs = at::empty_like(mine);
  exchange(peer, mine, theirs, "tied gradient");
  own->gradient.copy_(lookup ? mine + theirs : theirs + mine);
}

}  // namespace sluice
