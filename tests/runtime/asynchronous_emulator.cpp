#include "runtime/asynchronous_emulator.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "sluice/base/error.h"
#include "sluice/comm/mesh.h"
#include "sluice/comm/tensors/group.h"
#include "sluice/model/stage.h"
#include "sluice/optim/data_parallel.h"
#include "sluice/optim/gradient_norm.h"
#include "sluice/optim/optimizer.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/runtime/batches.h"

namespace sluice::test {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors values_of(Stage& stage) {
  Tensors out;
  for (const Parameter* parameter : stage.parameters())
    out.push_back(parameter->value.clone());
  return out;
}

void put(Stage& stage, at::Tensor Parameter::*tensor, const Tensors& from) {
  const std::vector<Parameter*> parameters = stage.parameters();
  for (std::size_t n = 0; n < parameters.size(); ++n)
    (parameters[n]->*tensor).copy_(from[n]);
}

MeshShape without_pipeline(MeshShape shape) {
  shape.pipeline = 1;
  return shape;
}

class Emulator {
 public:
  Emulator(const RunPlan& plan, const Dataset& data, int steps, Communicator& world)
      : plan_(plan),
        data_(data),
        steps_(steps),
        schedule_(plan.endless->whole(static_cast<int>(plan.config.training.steps))),
        mesh_(world, without_pipeline(plan.mesh)),
        tensor_group_(mesh_.tensor(), traffic_),
        tensor_(tensor_group_, plan.sequence_norms()),
        data_parallel_(mesh_, traffic_, 1 << 20) {
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      masters_[stage] = make(stage);
      versions_[stage] = {values_of(*masters_[stage])};
      predictions_[stage] = versions_[stage];
      for (const int holder : schedule_.placement.holders_of(stage))
        copies_[{holder, stage}] = make(stage);
      std::vector<ParameterShape> shapes;
      for (const Parameter* parameter : masters_[stage]->parameters())
        shapes.push_back({parameter->name, parameter->shard.whole});
      const OptimizerConfig& optimizer = plan.config.optimizer;
      const MatrixOwners owners(optimizer, stage, shapes, plan.mesh.shard);
      for (const KeptParameter& kept : masters_[stage]->kept()) {
        const Parameter* parameter = kept.parameter;
        const int owner = owners.owner_of(parameter->name);
        const bool twice = plan.shape.tied_embeddings && parameter->name == "head.weight";
        weights_[stage].push_back({.name = parameter->name,
                                   .value = kept.value,
                                   .gradient = kept.gradient,
                                   .decay = parameter->decay,
                                   .counted = parameter->shard.counted && !twice,
                                   .own = data_parallel_.own_rows(parameter->value.size(0), owner),
                                   .drawn_as = twice ? "embedding.weight" : "",
                                   .place = parameter->shard.first_element(),
                                   .owner = owner});
        if (const Shard& shard = parameter->shard;
            by_muon(optimizer, {parameter->name, shard.whole}))
          weights_[stage].back().matrix = {shard.whole[0], shard.whole[1], shard.dim};
      }
    }
    std::vector<Weight> all;
    for (const auto& [stage, weights] : weights_)
      all.insert(all.end(), weights.begin(), weights.end());
    optimizer_ = std::make_unique<Optimizer>(plan.config.optimizer,
                                             static_cast<std::uint64_t>(plan.config.debug.seed),
                                             all, &tensor_group_);
  }

  Emulated run() {
    std::vector<std::size_t> next(schedule_.programs.size(), 0);
    while (static_cast<int>(out_.losses.size()) < steps_) {
      bool any = false;
      for (std::size_t d = 0; d < next.size(); ++d)
        while (next[d] < schedule_.programs[d].size()) {
          const Op& op = schedule_.programs[d][next[d]];
          if (!is_communication(op.kind) && !ready(op)) break;
          if (!is_communication(op.kind)) run_op(static_cast<int>(d), op);
          ++next[d];
          any = true;
        }
      SLUICE_CHECK(any, "nothing is ready after {} steps", out_.losses.size());
    }
    for (auto& [stage, master] : masters_) {
      const std::vector<Parameter*> parameters = master->parameters();
      for (std::size_t n = 0; n < parameters.size(); ++n)
        out_.weights[parameters[n]->name] = versions_[stage][static_cast<std::size_t>(steps_)][n];
    }
    return std::move(out_);
  }

 private:
  using Copy = std::pair<int, int>;  // device, stage

  std::unique_ptr<Stage> make(int stage) {
    return std::make_unique<Stage>(plan_, stage, Machine(), tensor_);
  }

  static std::string key(const Op& op) {
    return fmt::format("{} {} {}", kind_name(op.kind == OpKind::B ? OpKind::I : op.kind), op.stage,
                       op.microbatch);
  }
  // Of updates and reductions that of the device.
  std::string key_on(int device, const Op& op) const {
    return key(op) + (has_window(op.kind) ? fmt::format(" on {}", device) : "");
  }

  bool ready(const Op& op) const {
    for (const Op& input : inputs_of(op, schedule_))
      if (!done_.contains(key_on(schedule_.device_of(input), input))) return false;
    return op.kind != OpKind::Update || all_reduced(schedule_.window_of(op));
  }

  // Updates of all stages are made at once here, also where each waits for its own gradients alone.
  bool all_reduced(int window) const {
    for (int stage = 0; stage < schedule_.num_stages(); ++stage)
      for (const int holder : schedule_.placement.holders_of(stage))
        if (!done_.contains(
                key_on(holder, schedule_.window_op(OpKind::ReduceGrad, holder, stage, window))))
          return false;
    return true;
  }

  const GlobalBatch& batch(int window) {
    const std::int64_t size = plan_.config.training.global_batch_size;
    if (!batches_.contains(window))
      batches_[window] = load_batch(data_, {window * size, size}, plan_.num_microbatches(),
                                    {mesh_.place().data, mesh_.shape().data()});
    return batches_.at(window);
  }

  // The version of the weights that an op is to use.
  std::int64_t version_for(int device, const Op& op, int window) {
    const std::int64_t made = updates_[{device, op.stage}];
    if (schedule_.weights == WeightVersions::previous) return std::max(0, window - 1);
    const auto forward = std::pair(op.stage, op.microbatch);
    if (op.kind == OpKind::F) forward_version_[forward] = made;
    return schedule_.weights == WeightVersions::stash ? forward_version_.at(forward) : made;
  }

  void run_op(int device, const Op& op) {
    const int window = schedule_.window_of(op);
    done_.insert(key_on(device, op));
    if (op.kind == OpKind::B) {
      Op weights = op;
      weights.kind = OpKind::W;
      done_.insert(key_on(device, weights));
    }
    if (op.kind == OpKind::Update) {
      if (updates_[{device, op.stage}]++ == static_cast<std::int64_t>(out_.losses.size()))
        update(window);
      return;
    }
    if (!is_compute(op.kind)) return;
    Stage& stage = *copies_.at({device, op.stage});
    const auto version = static_cast<std::size_t>(version_for(device, op, window));
    const Tensors* predicted = nullptr;
    if (schedule_.weights == WeightVersions::predicted && op.kind == OpKind::F) {
      // The window's first forward on the stage decides.
      const auto from = predicted_from_.try_emplace({op.stage, window}, version).first->second;
      if (static_cast<int>(from) < window) predicted = &predictions_.at(op.stage).at(from);
    }
    put(stage, &Parameter::value, predicted ? *predicted : versions_.at(op.stage).at(version));
    Tensors& gradients = gradients_[{device, op.stage}][window];
    if (gradients.empty())
      for (const Parameter* parameter : stage.parameters())
        gradients.push_back(at::zeros_like(parameter->gradient));
    put(stage, &Parameter::gradient, gradients);

    const GlobalBatch& data = batch(window);
    const Microbatch& microbatch =
        data.microbatches[static_cast<std::size_t>(op.microbatch % plan_.num_microbatches())];
    const int last = schedule_.num_stages() - 1;
    const auto take = [&](bool gradient) {
      return std::exchange(tensors_[{gradient, op.stage, op.microbatch}], at::Tensor());
    };
    switch (op.kind) {
      case OpKind::F: {
        stage.begin_window(op.microbatch, 1.0 / static_cast<double>(data.num_targets));
        stage.use_window(op.microbatch);
        at::Tensor y =
            stage.forward(op.microbatch, 0, microbatch, op.stage > 0 ? take(false) : at::Tensor());
        if (op.stage == last) losses_[window][device] += stage.loss();
        tensors_[{op.stage == last, op.stage == last ? last : op.stage + 1, op.microbatch}] = y;
        break;
      }
      case OpKind::I:
        tensors_[{true, op.stage - 1, op.microbatch}] =
            stage.input_grad(op.microbatch, 0, take(true));
        break;
      case OpKind::B:
        tensors_[{true, op.stage - 1, op.microbatch}] =
            stage.backward(op.microbatch, 0, take(true));
        break;
      default: stage.weight_grad(op.microbatch, 0); break;
    }
    std::size_t n = 0;
    for (const Parameter* parameter : stage.parameters())
      gradients[n++].copy_(parameter->gradient);
  }

  // Sums over tensor ranks, data ranks, copies and tied ends; then clips and steps.
  void update(int window) {
    std::map<int, std::vector<Tensors>> of_holders;
    for (auto& [stage, master] : masters_) {
      for (const int holder : schedule_.placement.holders_of(stage)) {
        put(*master, &Parameter::gradient, gradients_.at({holder, stage}).at(window));
        sum_shared_gradients(master->kept(), tensor_group_);
        data_parallel_.begin_sums(weights_.at(stage));
        data_parallel_.finish_sums();
        Tensors& sums = of_holders[stage].emplace_back();
        for (const Parameter* parameter : master->parameters())
          sums.push_back(parameter->gradient.clone());
        gradients_.at({holder, stage}).erase(window);
      }
      Tensors total = of_holders[stage][0];
      for (std::size_t holder = 1; holder < of_holders[stage].size(); ++holder)
        for (std::size_t n = 0; n < total.size(); ++n)
          total[n] = total[n] + of_holders[stage][holder][n];
      put(*master, &Parameter::gradient, total);
    }
    if (plan_.shape.tied_embeddings) add_tied();
    double loss = 0;
    for (const auto& [device, sum] : losses_.at(window))
      loss += sum;
    const DeviceTotals totals = device_totals(weights_, loss, false, mesh_);
    double squares = 0;
    for (const auto& [stage, of_stage] : totals.squares)
      for (const double square : of_stage)
        squares += square;
    out_.losses.push_back(totals.loss);
    out_.norms.push_back(std::sqrt(squares));
    const Config& config = plan_.config;
    const std::int64_t step = window + 1;
    double norm = std::sqrt(squares);
    if (config.parallelism.pipeline_parallel_schedule == "pipedream")
      norm = step > 1 ? out_.norms[static_cast<std::size_t>(step - 2)] : 0;
    optimizer_->step(step,
                     learning_rate(config.optimizer.lr, step, config.lr_scheduler.warmup_steps,
                                   config.training.steps, config.lr_scheduler.min_lr_ratio),
                     clip_scale(norm, config.training.max_norm));
    for (auto& [stage, master] : masters_) {
      data_parallel_.gather_values(weights_.at(stage));
      versions_[stage].push_back(values_of(*master));
      if (schedule_.weights == WeightVersions::predicted) predict(stage, step);
    }
    batches_.erase(window);
  }

  // The weights one update ahead, by the moments and the rate of the update to come.
  void predict(int stage, std::int64_t updates) {
    const Config& config = plan_.config;
    std::vector<at::Tensor> moments[2];
    for (const Weight& weight : weights_.at(stage))
      for (const Optimizer::State& state : optimizer_->states())
        for (const int n : {0, 1})
          if (state.name == weight.name + (n == 0 ? "/first_moment" : "/second_moment"))
            moments[n].push_back(state.tensor);
    const double lr =
        learning_rate(config.optimizer.lr, updates + 1, config.lr_scheduler.warmup_steps,
                      config.training.steps, config.lr_scheduler.min_lr_ratio);
    const auto n = static_cast<double>(updates);
    Tensors ahead = values_of(*masters_.at(stage));
    for (std::size_t w = 0; w < ahead.size(); ++w) {
      const at::Tensor size =
          (moments[1][w] / (1 - std::pow(config.optimizer.beta2, n))).sqrt() + config.optimizer.eps;
      ahead[w] = ahead[w] - moments[0][w] * (lr / (1 - std::pow(config.optimizer.beta1, n))) / size;
    }
    predictions_[stage].push_back(std::move(ahead));
  }

  void add_tied() {
    const int last = schedule_.num_stages() - 1;
    const auto find = [&](int stage, const char* name) {
      for (const Parameter* parameter : masters_.at(stage)->parameters())
        if (parameter->name == name) return parameter->gradient;
      throw InternalError(name);
    };
    at::Tensor lookup = find(0, "embedding.weight"), head = find(last, "head.weight");
    const at::Tensor sum = lookup + head;
    lookup.copy_(sum);
    head.copy_(sum);
  }

  const RunPlan& plan_;
  const Dataset& data_;
  const int steps_;
  const Schedule schedule_;
  Mesh mesh_;
  Traffic traffic_;
  TensorGroup tensor_group_;
  TensorParallel tensor_;
  DataParallel data_parallel_;
  std::map<int, std::unique_ptr<Stage>> masters_;  // the newest weights; they compute nothing
  std::map<Copy, std::unique_ptr<Stage>> copies_;
  std::map<int, std::vector<Weight>> weights_;       // of the masters
  std::map<int, std::vector<Tensors>> versions_;     // of the weights
  std::map<int, std::vector<Tensors>> predictions_;  // from each version, one update ahead
  std::map<std::pair<int, int>, std::size_t> predicted_from_;  // by stage, window
  std::map<Copy, std::map<int, Tensors>> gradients_;           // by window
  std::map<Copy, std::int64_t> updates_;
  std::map<std::pair<int, int>, std::int64_t> forward_version_;  // by stage, microbatch
  std::map<std::tuple<bool, int, int>, at::Tensor> tensors_;     // gradient?, stage, microbatch
  std::map<int, GlobalBatch> batches_;
  std::map<int, std::map<int, double>> losses_;  // by window, device
  std::set<std::string> done_;
  std::unique_ptr<Optimizer> optimizer_;
  Emulated out_;
};

}  // namespace

Emulated emulate(const RunPlan& plan, const Dataset& data, int steps, Communicator& world) {
  return Emulator(plan, data, steps, world).run();
}

}  // namespace sluice::test
