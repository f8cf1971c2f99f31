#include "sluice/runtime/trainer.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/runtime/gpu_memory.h"
#include "sluice/runtime/out_of_memory.h"
#include "sluice/runtime/planned_batch.h"
#include "sluice/schedule/transforms/forward_only.h"
#include "sluice/schedule/transforms/forward_prefix.h"

namespace sluice {

std::map<int, std::unique_ptr<Stage>> make_stages(const RunPlan& plan, int device,
                                                  const Machine& machine,
                                                  const TensorParallel& tensor,
                                                  const ShardRanks& shards) {
  std::map<int, std::unique_ptr<Stage>> stages;
  for (const int stage : plan.stages_of(device))
    stages[stage] = std::make_unique<Stage>(plan, stage, machine, tensor, shards);
  return stages;
}

Trainer::Trainer(const RunPlan& plan, const Dataset& data, Communicator& world,
                 const Machine& machine)
    : plan_(plan),
      kind_(tensor_kind(plan, machine.device)),
      data_(data),
      mesh_(world, plan.mesh, plan.endless != nullptr),
      tensor_group_(mesh_.tensor(), traffic_),
      tensor_(tensor_group_, plan.sequence_norms()),
      data_parallel_(
          mesh_, traffic_,
          static_cast<std::int64_t>(plan.config.parallelism.gradient_bucket_mib * (1 << 20)),
          plan.sharded()),
      stages_(
          make_stages(plan, mesh_.place().pipeline, machine, tensor_,
                      plan.sharded() ? ShardRanks{&mesh_.shard_group(), &traffic_} : ShardRanks())),
      pipeline_(make_tensor_channel(mesh_.pipeline(), machine.device)),
      boundaries_(plan.endless ? make_tensor_channel(mesh_.boundaries(), machine.device) : nullptr),
      step_plans_(plan, data, world),
      totals_(plan.schedule.placement, mesh_.pipeline()) {
  collect_weights();
  check_matrices();
  collect_owned();
  make_groups();
  copies_ = std::make_unique<StageCopies>(plan_, *pipeline_, traffic_, weights_);
  optimizer_ = std::make_unique<Optimizer>(plan.config.optimizer,
                                           static_cast<std::uint64_t>(plan.config.debug.seed),
                                           updated_weights(), &tensor_group_);
  sums_ = std::make_unique<GradientSums>(
      GradientSums::Parts{tensor_group_, data_parallel_, *copies_, local_, weights_});
  deferral_ = std::make_unique<Deferral>(plan_, *optimizer_, *copies_, data_parallel_, all_weights_,
                                         totals_);
  if (plan.endless) begin_windows(0);
  execution_of(plan.num_microbatches());
  plans_ = make_attention_plans(plan, machine, data);
}

void Trainer::collect_weights() {
  const OptimizerConfig& optimizer = plan_.config.optimizer;
  for (const auto& [number, stage] : stages_) {
    local_[number] = stage.get();
    std::vector<ParameterShape> shapes;
    for (const KeptParameter& kept : stage->kept())
      shapes.push_back({kept.parameter->name, kept.parameter->shard.whole});
    const MatrixOwners owners(optimizer, number, shapes, mesh_.shape().shard);
    for (const KeptParameter& kept : stage->kept()) {
      const Parameter* parameter = kept.parameter;
      // A tied weight counts once, as the embedding; the head's copy stays equal to it.
      const bool twice = plan_.shape.tied_embeddings && parameter->name == "head.weight";
      const Shard& shard = parameter->shard;
      const int owner = owners.owner_of(parameter->name);
      Weight weight{.name = parameter->name,
                    .value = kept.value,
                    .gradient = kept.gradient,
                    .decay = parameter->decay,
                    .counted = shard.counted && !twice,
                    .own = data_parallel_.own_rows(parameter->value.size(0), owner),
                    .drawn_as = twice ? "embedding.weight" : "",
                    .place = shard.first_element(),
                    .owner = owner,
                    .sharded_rows = plan_.sharded() ? parameter->value.size(0) : 0};
      if (by_muon(optimizer, {parameter->name, shard.whole}))
        weight.matrix = {shard.whole[0], shard.whole[1], shard.dim};
      weights_[number].push_back(weight);
      all_weights_.push_back(weight);
    }
  }
}

// A user who asks for Muon and has nothing for it would get AdamW without a word.
void Trainer::check_matrices() const {
  if (plan_.config.optimizer.name != OptimizerKind::muon) return;
  for (const auto& [stage, weights] : weights_) {
    const StageLayers layers = plan_.layers_of(stage);
    if (layers.first == layers.end) continue;
    if (std::none_of(weights.begin(), weights.end(), [](const Weight& w) { return w.matrix; }))
      throw user_error(
          "optimizer.name is muon: layers {} to {} have no matrices, which are all that it "
          "updates; "
          "use adamw or nadam",
          layers.first, layers.end - 1);
  }
}

void Trainer::collect_owned() {
  for (const auto& [stage, weights] : weights_)
    if (plan_.schedule.owner_of(stage) == mesh_.place().pipeline) owned_[stage] = weights;
}

std::vector<Weight> Trainer::updated_weights() const {
  std::vector<Weight> updated;
  for (const auto& [stage, weights] : weights_)
    if (updates_stage(plan_, stage, mesh_.place().pipeline))
      updated.insert(updated.end(), weights.begin(), weights.end());
  return updated;
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

// Aligned blocks of neighbours on the data axis, one for each power of two that divides the heads.
void Trainer::make_groups() {
  if (!plan_.ragged()) return;
  const BatchLimits limits = plan_.batch_limits();
  const int rank = mesh_.place().data;
  for (int degree = 2; degree <= limits.num_ranks && limits.heads % degree == 0; degree *= 2) {
    const int first = rank / degree * degree;
    if (first + degree <= limits.num_ranks)
      groups_.emplace(degree, TensorGroup(mesh_.data(), traffic_, first, degree));
  }
}

Boundary Trainer::boundary() {
  return {&tensor_group_, tensor_.sequence_norms(), plan_.scatter(), &traffic_};
}

Trainer::Execution& Trainer::execution_of(int num_microbatches) {
  Execution& execution = executions_[num_microbatches];
  if (execution.executor) return execution;
  const Schedule& schedule = plan_.schedule_of(num_microbatches);
  execution.executor = std::make_unique<Executor>(schedule, local_, boundaries(), boundary());
  execution.executor->set_hooks({.reduce = [this](int stage) { sums_->begin(stage); },
                                 .poll = [this] { deferral_->poll(); }});
  if (windows_)
    execution.executor->set_hooks({.reduce = [this](int stage) { sums_->begin(stage); },
                                   .poll = [this] { deferral_->poll(); },
                                   .before = [this](const Op& op) { windows_->before(op); },
                                   .after = [this](const Op& op) { windows_->after(op); }});
  execution.forward_prefix =
      closed_forward_prefixes(schedule)[static_cast<std::size_t>(mesh_.place().pipeline)];
  return execution;
}

GlobalBatch Trainer::load(const Dataset& data, const BatchRange& range, const BatchPlan& plan) {
  const MeshPlace& place = mesh_.place();
  const MeshShape& shape = mesh_.shape();
  return plan_.ragged() ? load_sequences(data, range, plan, {place.data, shape.tensor, &groups_})
                        : load_batch(data, range, plan_.num_microbatches(),
                                     {place.data, shape.data()}, plan_.slice_bounds());
}

GlobalBatch Trainer::on_device(GlobalBatch batch) const {
  if (kind_.on_gpu())
    for (Microbatch& microbatch : batch.microbatches)
      for (at::Tensor* tensor : {&microbatch.tokens, &microbatch.targets})
        // From pinned memory, so that the copy waits for nothing that the GPU is doing.
        *tensor = tensor->pin_memory().to(kind_.device, true);
  return batch;
}

void Trainer::begin(GlobalBatch batch, double scale) {
  batch_ = on_device(std::move(batch));
  for (const auto& [number, stage] : stages_)
    stage->begin_step(scale);
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
    const UserError error = out_of_memory(plan_, mesh_.world(), kind_.device, stash);
    mesh_.world().fail(std::make_exception_ptr(error));
    throw error;
  } catch (...) {
    mesh_.world().fail(std::current_exception());  // before messages in flight are dropped
    throw;
  }
}

Executor& Trainer::evaluator_of(int num_microbatches) {
  Evaluation& evaluation = evaluations_[num_microbatches];
  if (!evaluation.executor) {
    evaluation.forwards =
        forward_only(plan_.endless ? plan_.endless->whole(1) : plan_.schedule_of(num_microbatches));
    evaluation.executor =
        std::make_unique<Executor>(evaluation.forwards, local_, boundaries(), boundary(), true);
  }
  return *evaluation.executor;
}

BatchPlan Trainer::dealt(const Dataset& data, const BatchRange& range) {
  if (!plan_.ragged()) return {};
  return guarded([&] { return step_plans_.validation(lengths_of(data, range)); });
}

double Trainer::local_loss() const {
  double loss = 0;
  for (const auto& [number, stage] : stages_)
    loss += stage->loss();
  return loss;
}

double Trainer::all_to_all_seconds() const {
  double seconds = 0;
  for (const auto& [degree, group] : groups_)
    seconds += group.all_to_all_seconds();
  return seconds;
}

double Trainer::evaluate(const Dataset& held_out, std::int64_t num_samples) {
  SLUICE_CHECK(!open_step(), "step {} is open", open_step()->number);
  SLUICE_CHECK(num_samples > 0 && num_samples <= held_out.num_samples(), "{} of {} samples",
               num_samples, held_out.num_samples());
  double loss = 0;
  std::int64_t num_targets = 0;
  take_in();
  if (windows_) windows_->settle();
  const std::int64_t batch_size = plan_.config.training.global_batch_size;
  for (std::int64_t first = 0; first < num_samples; first += batch_size) {
    const BatchRange range{first, batch_size, num_samples};
    batch_ = on_device(load(held_out, range, dealt(held_out, range)));
    for (const auto& [number, stage] : stages_) {
      constexpr std::int64_t kAside = -1;  // a window of no step
      stage->begin_window(kAside, 1);
      stage->use_window(kAside);
    }
    guarded([&] {
      return evaluator_of(static_cast<int>(batch_.microbatches.size()))
          .run(batch_source(), plan_.shape.dim, kind_, std::chrono::steady_clock::now());
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
  SLUICE_CHECK(!open_step(), "step {} is open", open_step()->number);
  std::optional<StepResult> result = advance(number);
  return result ? std::move(*result) : std::move(*settle());
}

double Trainer::learning_rate_of(std::int64_t number) const {
  const Config& config = plan_.config;
  return learning_rate(config.optimizer.lr, number, config.lr_scheduler.warmup_steps,
                       config.training.steps, config.lr_scheduler.min_lr_ratio);
}

OpenWindows::Predict Trainer::prediction() {
  if (!predicts()) return {};
  return [this](int stage, std::int64_t updates) {
    if (!past_) {
      optimizer_->look_ahead(weights_.at(stage), updates, learning_rate_of(updates + 1));
      return;
    }
    for (Parameter* parameter : stages_.at(stage)->parameters())
      past_->predicted(*parameter);
  };
}

void Trainer::begin_windows(std::int64_t updates) {
  const int device = mesh_.place().pipeline;
  windows_.emplace(plan_, device, local_, updates, prediction());
  std::vector<Parameter*> updated;
  for (const auto& [number, stage] : stages_)
    if (updates_stage(plan_, number, device))
      for (Parameter* parameter : stage->parameters())
        updated.push_back(parameter);
  older_.emplace(std::move(updated), num_older(plan_));
  deferral_->set_before_update([this](const StepResult& result) {
    windows_->before_update();
    // Of several versions all but the last were made in steps before the one that is saved.
    const bool keeps = saves_ && older_->most() > 0 && (older_->most() > 1 || saves_(result));
    older_->before_update(keeps);
    if (!keeps || !predicts()) return;
    windows_->use_predictions();
    older_->keep_prediction();
    windows_->settle();
  });
}

void Trainer::open_windows(std::int64_t first, std::int64_t last) {
  const std::int64_t batch_size = plan_.config.training.global_batch_size;
  for (std::int64_t window = first; window <= std::min(last, plan_.config.training.steps - 1);
       ++window)
    if (!windows_->has(window))
      windows_->open(window, on_device(load(data_, {window * batch_size, batch_size}, {})));
}

void Trainer::run_early(int part, std::int64_t window) {
  Program program;
  for (const EndlessSchedule::Early& early :
       plan_.endless->early(mesh_.place().pipeline, static_cast<int>(window),
                            static_cast<int>(plan_.config.training.steps)))
    if (early.part == part) program.push_back(early.op);
  Executor& executor = *execution_of(plan_.num_microbatches()).executor;
  executor.set_program(std::move(program));
  executor.start([this](int m) -> const Microbatch& { return windows_->microbatch(m); },
                 plan_.shape.dim, kind_, std::chrono::steady_clock::now());
  guarded([&] { return executor.finish_part(); });
}

void Trainer::go_on_from(std::int64_t number, const Past& past) {
  if (!windows_ || number == 0) return;
  std::vector<at::Tensor> newest;
  for (const Parameter* parameter : parameters())
    newest.push_back(parameter->value.clone());
  const std::int64_t first = std::max<std::int64_t>(0, number - num_older(plan_));
  const bool known = first == number || past.older(static_cast<int>(number - first));
  begin_windows(known ? first : number);
  open_windows(number, number + plan_.endless->ahead());
  past_ = known ? &past : nullptr;
  for (std::int64_t part = first; part < number; ++part) {
    run_early(static_cast<int>(part), number);
    if (!known) continue;
    windows_->settle();
    if (older_->most() > 1) older_->before_update(true);
    windows_->before_update();
    if (part + 1 < number) {
      past.older(static_cast<int>(number - part - 1));
    } else {
      std::size_t n = 0;
      for (Parameter* parameter : parameters())
        parameter->value.copy_(newest[n++]);
    }
    windows_->after_past_update();
  }
  past_ = nullptr;
}

void Trainer::take_in() {
  if (!windows_) return;
  const int device = mesh_.place().pipeline;
  const auto count = static_cast<int>(plan_.config.training.steps);
  Executor& executor = *execution_of(plan_.num_microbatches()).executor;
  guarded([&] {
    executor.take_in(plan_.endless->under_way(device, static_cast<int>(windows_->next()), count));
  });
}

// One part of the run: the rest of the step, and what the steps behind it begin before its update.
StepResult Trainer::overlapping_step(std::int64_t number, const std::function<bool()>& stop) {
  SLUICE_CHECK(windows_->next() == number - 1, "step {} after {}", number, windows_->next());
  open_windows(number - 1, number - 1 + plan_.endless->ahead());
  const GlobalBatch& batch = windows_->batch(number - 1);
  StepResult result;
  result.number = number;
  result.num_tokens = batch.num_tokens;
  result.num_targets = batch.num_targets;
  result.squared_lengths = batch.squared_lengths;
  result.learning_rate = learning_rate_of(number);
  if (origin_ == std::chrono::steady_clock::time_point()) {
    mesh_.world().barrier("step");
    origin_ = std::chrono::steady_clock::now();
  }
  Executor& executor = *execution_of(plan_.num_microbatches()).executor;
  executor.set_program(plan_.endless->part(mesh_.place().pipeline, static_cast<int>(number - 1),
                                           static_cast<int>(plan_.config.training.steps)));
  executor.start([this](int m) -> const Microbatch& { return windows_->microbatch(m); },
                 plan_.shape.dim, kind_, origin_);
  result.executed = guarded([&] { return executor.finish_part(); });
  windows_->settle();
  sums_->finish();
  deferral_->begin(std::move(result),
                   device_totals(owned_, windows_->loss(), stop && stop(), mesh_));
  result = *settle();
  result.counts = windows_->after_update();
  result.update_seconds = update_seconds();
  return result;
}

// The optimizer goes through the weights of all stages at once: each stage's part by its elements.
std::map<int, double> Trainer::update_seconds() const {
  std::map<int, double> elements;
  double all = 0;
  for (const auto& [stage, weights] : weights_)
    if (updates_stage(plan_, stage, mesh_.place().pipeline))
      for (const Weight& weight : weights) {
        const auto count = static_cast<double>(weight.own_value().numel());
        elements[stage] += count;
        all += count;
      }
  for (auto& [stage, count] : elements)
    count *= deferral_->update_seconds() / all;
  return elements;
}

std::optional<StepResult> Trainer::advance(std::int64_t number, const std::function<bool()>& stop) {
  if (windows_) return overlapping_step(number, stop);
  // The batch is read before the clock of the step starts.
  const Config& config = plan_.config;
  const std::int64_t batch_size = config.training.global_batch_size;
  const BatchRange range{(number - 1) * batch_size, batch_size};
  StepPlan planned = guarded([&] { return step_plans_.take(number); });
  batch_plan_ = std::move(planned.batch);
  GlobalBatch batch = load(data_, range, batch_plan_);
  Execution& execution = execution_of(static_cast<int>(batch.microbatches.size()));
  // The mean is over the targets of the whole global batch, so that packing does not change the
  // gradient.
  const double scale = batch.num_targets > 0 ? 1.0 / static_cast<double>(batch.num_targets) : 0;
  StepResult result;
  result.number = number;
  result.num_tokens = batch.num_tokens;
  result.num_targets = batch.num_targets;
  result.squared_lengths = batch.squared_lengths;
  if (plan_.ragged())
    result.padded_tokens = padded_tokens(plan_, batch_plan_, lengths_of(data_, range));
  result.planning = planned.planning;
  result.learning_rate = learning_rate_of(number);
  begin(std::move(batch), scale);
  if (!open_step()) {
    mesh_.world().barrier("step");
    origin_ = std::chrono::steady_clock::now();
  }
  std::optional<StepResult> before;
  const double exchanged = all_to_all_seconds();
  result.executed = execute(execution, scale, before);
  result.executed.all_to_all_s = all_to_all_seconds() - exchanged;
  sums_->finish();
  deferral_->begin(std::move(result), device_totals(owned_, local_loss(), stop && stop(), mesh_));
  return config.parallelism.deferred_validation ? before : settle();
}

// Runs the program of a step. If the previous step is still open, only the first forwards run
// before it is settled; they run again if its update had to be corrected.
ExecutedStep Trainer::execute(Execution& execution, double scale,
                              std::optional<StepResult>& before) {
  Executor& executor = *execution.executor;
  const auto start = [&] { executor.start(batch_source(), plan_.shape.dim, kind_, origin_); };
  start();
  if (open_step()) {
    guarded([&] { executor.run_to(execution.forward_prefix); });
    const StepTotals totals = totals_.finish();
    if (!deferral_->stands(totals)) {
      guarded([&] { executor.drop(); });
      for (const auto& [number, stage] : stages_) {
        stage->drop_microbatches();
        stage->begin_step(scale);
      }
      start();
    }
    before = deferral_->close(totals);
  }
  for (const auto& [number, stage] : stages_)
    stage->zero_gradients();
  return guarded([&] { return executor.finish(); });
}

std::optional<StepResult> Trainer::settle() {
  if (!open_step()) return std::nullopt;
  return deferral_->close();
}

}  // namespace sluice
