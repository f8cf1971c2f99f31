#include "sluice/runtime/sequence_profiling.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>

#include "sluice/base/error.h"
#include "sluice/cost/head_share.h"
#include "sluice/model/sequence_parallel.h"
#include "sluice/run/step_traffic.h"
#include "sluice/runtime/alone.h"
#include "sluice/runtime/executor.h"
#include "sluice/runtime/trainer.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The longest sequence, a half of it, a quarter, ..., each alone and in rows of 4, 16 and 64. Four
// lengths at least; beyond that none of fewer than 64 tokens, of which hardly anything depends on
// the tokens.
std::vector<SequencePoint> points_of(const RunPlan& plan) {
  constexpr int kLeast = 4, kMost = 7, kShort = 64;
  const std::int64_t most = plan.largest_share(0).tokens;
  std::int64_t length = plan.config.training.sequence_length;
  std::vector<SequencePoint> points;
  for (int n = 0; n < kMost && length > 0 && (n < kLeast || length >= kShort); ++n, length /= 2)
    for (std::int64_t count = 1; count * length <= most && count <= 64; count *= 4)
      points.push_back({length, count, 0});
  return points;
}

// `count` sequences in one row, padded among the tensor ranks.
Microbatch row_of(const RunPlan& plan, const SequencePoint& point, const TensorKind& kind) {
  const std::int64_t tokens = point.length * point.count;
  const std::int64_t padded = padded_to(tokens, plan.mesh.tensor);
  Microbatch batch;
  std::vector<std::int64_t>& starts = batch.documents.starts.emplace_back();
  for (std::int64_t start = 0; start < padded; start += point.length)
    starts.push_back(start);
  at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(plan.config.debug.seed));
  const auto draw = [&] {
    return at::randint(plan.shape.vocab_size, {1, padded}, generator, at::kLong).to(kind.device);
  };
  batch.tokens = draw();
  batch.targets = draw();
  return batch;
}

class Sequences {
 public:
  Sequences(const RunPlan& plan, const Machine& machine, Communicator& world)
      : plan_(plan),
        kind_(tensor_kind(plan, machine.device)),
        mesh_(world, plan.mesh),
        tensor_group_(mesh_.tensor(), traffic_),
        tensor_(tensor_group_, plan.sequence_norms()),
        stages_(make_stages(
            plan, mesh_.place().pipeline, machine, tensor_,
            plan.sharded() ? ShardRanks{&mesh_.shard_group(), &traffic_} : ShardRanks())),
        alone_(mesh_.place().pipeline, plan, kind_),
        one_(plan.schedule) {
    for (Program& program : one_.programs)
      std::erase_if(program, [](const Op& op) { return op.microbatch > 0; });
  }

  // Of the device that takes longest, over its data and tensor ranks the mean.
  double seconds(const SequencePoint& point, double budget) {
    const Microbatch batch = row_of(plan_, point, kind_);
    std::map<int, Stage*> local;
    for (const auto& [number, stage] : stages_)
      local[number] = stage.get();
    Executor executor(one_, local, alone_,
                      {&tensor_group_, tensor_.sequence_norms(), plan_.scatter(), nullptr});
    const double first = round(executor, batch);
    // As many rounds on every rank: with sharded parameters they gather together.
    double wanted = std::clamp(budget / std::max(first, 1e-9), 3.0, 50.0);
    world().broadcast(0, std::as_writable_bytes(std::span(&wanted, 1)), "profile");
    world().barrier("profile");
    std::vector<double> rounds;
    for (int n = 0; n < static_cast<int>(wanted); ++n)
      rounds.push_back(round(executor, batch));
    std::vector<double> devices(static_cast<std::size_t>(plan_.mesh.pipeline), 0);
    const std::vector<double> all = of_all(median(std::move(rounds)));
    for (int rank = 0; rank < world().size(); ++rank)
      devices[static_cast<std::size_t>(place_of(rank, plan_.mesh).pipeline)] +=
          all[static_cast<std::size_t>(rank)] / (plan_.mesh.data() * plan_.mesh.tensor);
    return *std::max_element(devices.begin(), devices.end());
  }

  // What one layer takes to exchange the heads of so many tokens of each rank for tokens and back,
  // and the same of the gradients; the slowest rank counts. Ranks that no group of this degree has
  // room for look on.
  double exchange_seconds(int degree, std::int64_t tokens) {
    constexpr int kRuns = 20, kWarmUps = 3;
    Communicator& data = mesh_.data();
    const int first = data.rank() / degree * degree;
    const bool takes_part = first + degree <= data.size();
    world().barrier("profile");
    std::vector<double> runs = {0};
    if (takes_part) {
      runs.clear();
      TensorGroup group(data, traffic_, first, degree);
      const LocalShape local = local_shape(plan_.shape, plan_.mesh.tensor);
      const HeadShare share = head_share(local, degree, group.rank());
      const at::Tensor qkv = at::randn({tokens, local.qkv_dim()}).to(kind_.device, kind_.dtype);
      for (int n = 0; n < kRuns; ++n) {
        const auto start = Clock::now();
        const at::Tensor heads = tokens_to_heads(qkv, group, local, "profile");
        const at::Tensor queries = heads.narrow(1, 0, share.heads * local.head_dim);
        const at::Tensor output = heads_to_tokens(queries.contiguous(), group, "profile");
        queries_to_heads(output, group, "profile");
        heads_to_qkv(heads, group, local, "profile");
        if (kind_.on_gpu()) cuda::synchronize();
        if (n >= kWarmUps) runs.push_back(seconds_since(start));
      }
    }
    const std::vector<double> all = of_all(median(std::move(runs)));
    return *std::max_element(all.begin(), all.end());
  }

 private:
  Communicator& world() { return mesh_.world(); }

  double round(Executor& executor, const Microbatch& batch) {
    for (const auto& [number, stage] : stages_) {
      stage->zero_gradients();
      stage->begin_step(1.0 / static_cast<double>(batch.tokens.numel()));
    }
    return executor
        .run([&](int) -> const Microbatch& { return batch; }, plan_.shape.dim, kind_, Clock::now())
        .timeline.busy;
  }

  std::vector<double> of_all(double mine) {
    std::vector<double> all(static_cast<std::size_t>(world().size()));
    world().all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                       "profile");
    return all;
  }

  const RunPlan& plan_;
  TensorKind kind_;
  Mesh mesh_;
  Traffic traffic_;
  TensorGroup tensor_group_;
  TensorParallel tensor_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Alone alone_;
  Schedule one_;  // of one microbatch
};

}  // namespace

SequenceProfile profile_sequences(const RunPlan& plan, const Machine& machine, Communicator& world,
                                  const ProfileOptions& profile) {
  SLUICE_CHECK(plan.ragged(), "sequences are all equal");
  at::set_num_threads(profile.threads_per_rank);
  Sequences sequences(plan, machine, world);
  SequenceProfile out;
  SequenceCosts& costs = out.costs;
  std::vector<SequencePoint> points = points_of(plan);
  for (SequencePoint& point : points) {
    if (world.rank() == 0 && profile.on_progress)
      profile.on_progress(
          fmt::format("profiling sequences: {} of {} tokens", point.count, point.length));
    point.seconds = sequences.seconds(point, profile.seconds / 2);
  }
  out.points = static_cast<int>(points.size());
  out.fit = fit_sequences(points);
  costs.a1 = out.fit.a1;
  costs.a2 = out.fit.a2;
  costs.b1 = out.fit.b1;
  costs.heads = plan.batch_limits().heads;

  costs.all_to_all_bytes_per_token = all_to_all_bytes_per_token(plan);
  costs.device_layers = device_layers(plan);
  costs.parameter_shards = plan.sharded() ? plan.mesh.shard : 1;
  // Queries, keys, values and output in F, and their gradients in I.
  const LocalShape local = local_shape(plan.shape, plan.mesh.tensor);
  const std::int64_t once = 2 * (local.qkv_dim() + local.q_dim());
  const auto bytes = static_cast<double>(plan.element_bytes());
  const std::int64_t tokens = std::max<std::int64_t>(plan.largest_share(0).tokens / 2, 1);
  for (int degree = 2; degree <= plan.mesh.data() && costs.heads % degree == 0; degree *= 2)
    costs.bytes_per_s[degree] =
        static_cast<double>(once * tokens) * bytes / sequences.exchange_seconds(degree, tokens);
  return out;
}

}  // namespace sluice
