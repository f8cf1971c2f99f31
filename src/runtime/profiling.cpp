#include "sluice/runtime/profiling.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "sluice/run/op_costs.h"
#include "sluice/runtime/alone.h"
#include "sluice/runtime/op_timings.h"
#include "sluice/runtime/trainer.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Tells when every rank has finished measuring. No rank waits: each keeps computing until then.
class Finish {
 public:
  explicit Finish(Communicator& world)
      : world_(world), inbox_(static_cast<std::size_t>(world.size())) {
    const int first = world.rank() == 0 ? 1 : 0, end = world.rank() == 0 ? world.size() : 1;
    for (int rank = first; rank < end; ++rank)
      receives_.push_back(
          world.recv(rank, std::span(inbox_).subspan(static_cast<std::size_t>(rank), 1), kLabel));
  }

  // This rank has finished.
  void mine() {
    finished_ = true;
    if (world_.rank() > 0) tell(0);
  }

  bool all() {
    std::erase_if(receives_, [&](Request& request) { return world_.test(request); });
    if (!finished_ || !receives_.empty()) return false;
    for (int rank = 1; rank < world_.size() && world_.rank() == 0; ++rank)
      tell(rank);
    world_.wait_all(sends_);
    return true;
  }

 private:
  static constexpr const char* kLabel = "has measured";

  void tell(int rank) { sends_.push_back(world_.send(rank, std::span(&token_, 1), kLabel)); }

  Communicator& world_;
  const std::byte token_{};
  std::vector<std::byte> inbox_;  // by rank
  bool finished_ = false;
  std::vector<Request> receives_, sends_;
};

// The same program with fused backwards split and split backwards fused.
Schedule other_form(const Schedule& schedule) {
  Schedule out = schedule;
  for (Program& program : out.programs) {
    Program form;
    for (Op op : program) {
      if (op.kind == OpKind::W) continue;
      const bool fused = op.kind == OpKind::B;
      if (fused)
        op.kind = OpKind::I;
      else if (op.kind == OpKind::I)
        op.kind = OpKind::B;
      form.push_back(op);
      if (!fused) continue;
      op.kind = OpKind::W;
      form.push_back(op);
    }
    program = std::move(form);
  }
  return out;
}

// One rank's stages, and the rounds they play.
class Player {
 public:
  Player(const RunPlan& plan, const Machine& machine, Mesh& mesh, const ProfileOptions& profile)
      : plan_(plan),
        kind_(tensor_kind(plan, machine.device)),
        mesh_(mesh),
        world_(mesh.world()),
        profile_(profile),
        tensor_group_(mesh.tensor(), traffic_),
        tensor_(tensor_group_, plan.sequence_norms()),
        stages_(make_stages(plan, mesh.place().pipeline, machine, tensor_)),
        alone_(mesh.place().pipeline, plan, kind_) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(
        static_cast<std::uint64_t>(plan.config.debug.seed));
    const std::int64_t length = plan.config.training.sequence_length;
    std::vector<std::int64_t> sizes = {plan.sequences(), length};
    if (plan.ragged()) {
      // As many as a microbatch may have, in one row (load_sequences).
      sizes = {1, plan.largest_share(0).tokens};
      std::vector<std::int64_t>& starts = batch_.documents.starts.emplace_back();
      for (std::int64_t start = 0; start < sizes[1]; start += length)
        starts.push_back(start);
    } else {
      batch_.bounds = plan.slice_bounds();
    }
    const auto tokens = [&] {
      return at::randint(plan.shape.vocab_size, sizes, generator, at::kLong).to(kind_.device);
    };
    batch_.tokens = tokens();
    batch_.targets = tokens();
  }

  // Rounds in a second, over at least so many seconds.
  double rate(const Schedule& form, double seconds) {
    Executor executor = make_executor(form);
    round(executor);
    const auto start = Clock::now();
    int count = 0;
    while (count == 0 || seconds_since(start) < seconds) {
      round(executor);
      ++count;
    }
    return count / seconds_since(start);
  }

  // Plays rounds and adds to `timings` until there are enough.
  void play(const Schedule& form, OpTimings& timings) {
    ++passes_;
    Executor executor = make_executor(form);
    round(executor);  // warms up
    Finish finish(world_);
    world_.barrier("profile");
    const auto start = Clock::now();
    for (int n = 0; agreed(n < profile_.rounds || seconds_since(start) < profile_.seconds); ++n) {
      report(n);
      timings.add(round(executor));
    }
    finish.mine();
    while (!agreed(finish.all()))
      round(executor);
  }

 private:
  Executor make_executor(const Schedule& form) {
    std::map<int, Stage*> local;
    for (const auto& [number, stage] : stages_)
      local[number] = stage.get();
    return Executor(form, local, alone_,
                    {&tensor_group_, tensor_.sequence_norms(), plan_.scatter(), nullptr});
  }

  // Tensor ranks must play the same rounds, so the first of them decides how many.
  bool agreed(bool mine) {
    mesh_.tensor().broadcast(0, std::as_writable_bytes(std::span(&mine, 1)), "profile");
    return mine;
  }

  DeviceTimeline round(Executor& executor) {
    for (const auto& [number, stage] : stages_) {
      stage->zero_gradients();
      stage->begin_step(1.0 / static_cast<double>(plan_.config.training.sequence_length));
    }
    return executor
        .run([this](int) -> const Microbatch& { return batch_; }, plan_.shape.dim, kind_,
             Clock::now())
        .timeline;
  }

  void report(int rounds) {
    if (world_.rank() != 0 || !profile_.on_progress || seconds_since(reported_) < 2) return;
    reported_ = Clock::now();
    profile_.on_progress(
        fmt::format("profiling, pass {} of 2: {} of {} rounds", passes_, rounds, profile_.rounds));
  }

  const RunPlan& plan_;
  TensorKind kind_;
  Mesh& mesh_;
  Communicator& world_;
  const ProfileOptions& profile_;
  Traffic traffic_;
  TensorGroup tensor_group_;
  TensorParallel tensor_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Alone alone_;
  Microbatch batch_;
  Clock::time_point reported_ = Clock::now();
  int passes_ = 0;
};

// Half the time of a message there and back: the median of several. Both ranks of the pair call it.
double one_way(Communicator& world, int peer, bool first, const at::Tensor& bytes) {
  constexpr int kTrips = 31;
  std::vector<double> trips;
  for (int n = 0; n < kTrips + 2; ++n) {
    const auto start = Clock::now();
    for (const bool sends : {first, !first}) {
      Request request = sends ? world.send(peer, tensor_bytes(bytes), "profile")
                              : world.recv(peer, tensor_bytes(bytes), "profile");
      world.wait(request);
      if (bytes.is_cuda()) cuda::synchronize();
    }
    if (n >= 2) trips.push_back(seconds_since(start));
  }
  std::nth_element(trips.begin(), trips.begin() + kTrips / 2, trips.end());
  return trips[kTrips / 2] / 2;
}

// From the one rank of a pair to the other. Both call it.
Link measure_link(Communicator& world, int peer, bool first, const at::Tensor& large) {
  Link link;
  link.latency = one_way(world, peer, first, large.slice(0, 0, 1));
  const double moving = one_way(world, peer, first, large) - link.latency;
  if (moving > 0) link.bytes_per_time = static_cast<double>(large.numel()) / moving;
  return link;
}

// The links between ranks that exchange messages, one pair after the other; the slowest of them
// stands for all pairs not measured.
void measure_links(const Schedule& schedule, Communicator& world, const at::Tensor& large,
                   Costs& costs) {
  std::set<std::pair<int, int>> pairs;
  for (int device = 0; device < schedule.num_devices(); ++device)
    for (const Op& op : schedule.programs[static_cast<std::size_t>(device)])
      if (is_send(op.kind)) {
        const int peer = schedule.placement.device_of(op.pipe, partner_stage(op));
        pairs.insert({std::min(device, peer), std::max(device, peer)});
      }
  for (const auto& [a, b] : pairs) {
    world.barrier("profile");
    Link link;
    if (world.rank() == a || world.rank() == b) {
      link = measure_link(world, world.rank() == a ? b : a, world.rank() == a, large);
    }
    world.broadcast(a, std::as_writable_bytes(std::span(&link, 1)), "link");
    costs.links[{a, b}] = costs.links[{b, a}] = link;
    costs.default_link.latency = std::max(costs.default_link.latency, link.latency);
    double& slowest = costs.default_link.bytes_per_time;
    if (link.bytes_per_time > 0)
      slowest = slowest > 0 ? std::min(slowest, link.bytes_per_time) : link.bytes_per_time;
  }
}

}  // namespace

// How much faster a device is while others are idle: first all work, then all but the last, and so
// on.
std::vector<double> measure_contention(Player& player, const Schedule& lowered, Communicator& ranks,
                                       const ProfileOptions& profile) {
  // Short rounds, so that all end at about the same time.
  Schedule few = lowered;
  for (Program& program : few.programs)
    std::erase_if(program, [](const Op& op) { return op.microbatch > 0; });
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<double> all_busy, contention(size, 1);
  for (std::size_t busy = size; busy > 0; --busy) {
    if (ranks.rank() == 0 && profile.on_progress)
      profile.on_progress(fmt::format("profiling, contention: {} of {} devices busy", busy, size));
    ranks.barrier("contention");
    const double mine = static_cast<std::size_t>(ranks.rank()) < busy
                            ? player.rate(few, std::max(profile.seconds, 1.0))
                            : 0;
    std::vector<double> rates(size);
    ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(rates)),
                     "contention");
    if (busy == size) all_busy = rates;
    double sum = 0;
    for (std::size_t rank = 0; rank < busy; ++rank)
      sum += rates[rank] / all_busy[rank];
    contention[busy - 1] = sum / static_cast<double>(busy);
  }
  return contention;
}

Costs profile_ops(const RunPlan& plan, const Machine& machine, Communicator& world,
                  const ProfileOptions& profile) {
  at::set_num_threads(profile.threads_per_rank);
  const Schedule& lowered = plan.schedule;
  Mesh mesh(world, plan.mesh);
  Costs costs = byte_costs(plan);
  costs.layers = plan.layers_per_stage;
  costs.measured_on = measured_on(plan);
  const TensorKind kind = tensor_kind(plan, machine.device);
  const bool shared = kind.on_gpu() && !world.moves_device_memory();
  const auto memory = [&](double bytes) {
    return at::zeros({static_cast<std::int64_t>(bytes)}, kind.values().dtype(at::kByte));
  };
  {
    Player player(plan, machine, mesh, profile);
    OpTimings timings;
    player.play(other_form(lowered), timings);
    player.play(lowered, timings);
    timings.gather_into(costs, mesh.pipeline());
    if (shared && mesh.pipeline().size() > 1)
      costs.contention = measure_contention(player, lowered, mesh.pipeline(), profile);
  }
  double largest = 1;
  for (int stage = 0; stage < lowered.num_stages(); ++stage)
    for (int slice = 0; slice < lowered.num_slices; ++slice)
      largest = std::max(
          {largest, costs.at(stage, slice).sent_forward, costs.at(stage, slice).sent_backward});
  // Ranks that share a GPU hand tensors over without copying, so there is no link to measure.
  if (!shared) measure_links(lowered, mesh.pipeline(), memory(largest), costs);
  // The first two data ranks stand for all; the message is as large as their first stage reduces.
  if (Communicator& data = mesh.data(); data.size() > 1) {
    world.barrier("profile");
    const at::Tensor large = memory(std::clamp(costs.reduce_bytes(0), 1.0, 64.0 * (1 << 20)));
    if (data.rank() < 2)
      costs.data_link = measure_link(data, 1 - data.rank(), data.rank() == 0, large);
  }
  return costs;
}

}  // namespace sluice
