#include "cli/dry_run.h"

#include <fmt/ranges.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text.h"
#include "cost/buffers.h"
#include "cost/workspace.h"
#include "cuda/device.h"
#include "runtime/ranks.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Class {
  const char* name;
  std::int64_t (*bytes)(const RankMemory&);
};
constexpr Class kClasses[] = {
    {"weights", [](const RankMemory& m) { return m.weights; }},
    {"gradients", [](const RankMemory& m) { return m.gradients; }},
    {"optimizer", [](const RankMemory& m) { return m.optimizer; }},
    {"stash", [](const RankMemory& m) { return m.stash; }},
    {"buffers", [](const RankMemory& m) { return m.buffers; }},
    {"workspace", [](const RankMemory& m) { return m.workspace; }},
    {"reduction", [](const RankMemory& m) { return m.reduction; }},
    {"rollback", [](const RankMemory& m) { return m.rollback; }},
    {"total", [](const RankMemory& m) { return m.total(); }},
};

// The classes that the table shows: all but those that only some runs have and this one has not.
std::vector<Class> shown_classes(const std::vector<RankMemory>& ranks) {
  std::vector<Class> shown;
  for (const Class& c : kClasses) {
    const bool rare =
        std::string_view(c.name) == "reduction" || std::string_view(c.name) == "rollback";
    const bool any = std::any_of(ranks.begin(), ranks.end(),
                                 [&](const RankMemory& rank) { return c.bytes(rank) > 0; });
    if (!rare || any) shown.push_back(c);
  }
  return shown;
}

// The classes of traffic in which any rank sends something.
std::vector<TrafficClass> moving(const std::vector<RankMemory>& ranks) {
  std::vector<TrafficClass> out;
  for (int c = 0; c < kNumTrafficClasses; ++c) {
    const auto kind = static_cast<TrafficClass>(c);
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&](const RankMemory& rank) { return rank.traffic.of(kind) > 0; }))
      out.push_back(kind);
  }
  return out;
}

std::string mebibytes(double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); }

std::int64_t sum(const std::vector<RankMemory>& ranks, const Class& c) {
  std::int64_t total = 0;
  for (const RankMemory& rank : ranks)
    total += c.bytes(rank) * static_cast<std::int64_t>(rank.ranks.size());
  return total;
}

// " (2 data x 4 pipeline x 2 tensor)"; empty where there is only a pipeline.
std::string mesh_text(const MeshShape& mesh) {
  if (mesh.data() * mesh.tensor == 1) return "";
  return fmt::format(" ({} data x {} pipeline x {} tensor)", mesh.data(), mesh.pipeline,
                     mesh.tensor);
}

// 0-3,8: numbers in ascending order.
std::string number_ranges(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0, end = 0; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;)
      ++end;
    if (!out.empty()) out += ',';
    out += fmt::format("{}", numbers[i]);
    if (end > i + 1) out += fmt::format("-{}", numbers[end - 1]);
  }
  return out;
}

// The memory of this machine, or of its container; or of the GPU that the run would use, if it is
// here.
std::optional<std::int64_t> machine_bytes(const RunSetup& setup) {
  if (setup.options.kind.on_gpu()) {
    if (cuda::num_devices() == 0) return std::nullopt;
    return cuda::memory_use(setup.options.kind.device.index()).total;
  }
  const std::int64_t installed = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  std::int64_t allowed = 0;
  return limit >> allowed ? std::min(installed, allowed) : installed;
}

bool on_threads(const RunSetup& setup) { return setup.config.comm.backend == "threads"; }

// What has to fit into this machine: all ranks if they are threads, else at least the largest.
std::int64_t needed_bytes(const RunSetup& setup, const std::vector<RankMemory>& ranks) {
  std::int64_t all = 0, largest = 0;
  for (const RankMemory& rank : ranks) {
    all += rank.total() * static_cast<std::int64_t>(rank.ranks.size());
    largest = std::max(largest, rank.total());
  }
  return on_threads(setup) ? all : largest;
}

// Why train would not start: weights that do not fit into memory and swap; those of all ranks if
// they are threads, else those of any one. A GPU reports by itself what does not fit.
std::string weights_problem(const RunSetup& setup, const std::vector<RankMemory>& ranks) {
  if (setup.options.kind.on_gpu()) return "";
  std::int64_t all = 0, least = std::numeric_limits<std::int64_t>::max();
  for (const RankMemory& rank : ranks) {
    const std::int64_t bytes = rank.weights + rank.gradients + rank.optimizer;
    all += bytes * static_cast<std::int64_t>(rank.ranks.size());
    least = std::min(least, bytes);
  }
  const std::int64_t fixed = on_threads(setup) ? all : least;
  struct sysinfo system = {};
  const std::int64_t swap =
      ::sysinfo(&system) == 0 ? static_cast<std::int64_t>(system.totalswap * system.mem_unit) : 0;
  const std::int64_t here = *machine_bytes(setup) + swap;
  if (fixed <= here) return "";
  return fmt::format(
      "weights, gradients and optimizer of {} take {} MiB, and this machine has {} MiB: use a "
      "smaller model, narrower types (training.dtype, training.gradient_dtype, "
      "optimizer.state_dtype) or more machines",
      on_threads(setup) ? "all ranks" : "a rank", mebibytes(static_cast<double>(fixed)),
      mebibytes(static_cast<double>(here)));
}

// The peak of the stash over all ranks with fused backwards, if that is less because a layer's
// stash grows at I; else 0.
double smaller_fused_peak(const RunSetup& setup) {
  if (setup.options.level == RecomputeLevel::none || setup.config.parallelism.fuse_backward)
    return 0;
  const StagedModel model = staged_model(setup.options, setup.schedule);
  const StashBytes block = block_stash(query_of(model, setup.schedule, 0));
  if (block.after_i <= block.after_f) return 0;
  Config fused = setup.config;
  fused.parallelism.fuse_backward = true;
  const Schedule schedule = make_schedule(fused);
  const double peak = simulate(schedule, byte_costs(model, schedule)).max_peak_bytes;
  return peak < setup.memory.max_peak_bytes ? peak : 0;
}

std::vector<std::string> remarks(const RunSetup& setup, const std::vector<RankMemory>& ranks,
                                 const std::vector<std::string>& resume) {
  std::vector<std::string> out = setup.notes;
  out.insert(out.end(), resume.begin(), resume.end());
  if (const double fused = smaller_fused_peak(setup); fused > 0)
    out.push_back(fmt::format(
        "recompute.level is {}: what I recomputes is kept until its W, so the split backward of {} "
        "keeps up to {} MiB of activations; with parallelism.fuse_backward = true it would be {} "
        "MiB",
        setup.config.recompute.level, setup.schedule.name, mebibytes(setup.memory.max_peak_bytes),
        mebibytes(fused)));
  const std::int64_t needed = needed_bytes(setup, ranks);
  const std::optional<std::int64_t> machine = machine_bytes(setup);
  const std::string weights = weights_problem(setup, ranks);
  if (weights.empty() && machine && needed > *machine)
    out.push_back(fmt::format(
        "{} {} MiB, and this machine has {} MiB: use a smaller model, smaller microbatches, more "
        "recomputation or more machines",
        on_threads(setup) ? "all ranks together need" : "the largest rank needs",
        mebibytes(static_cast<double>(needed)), mebibytes(static_cast<double>(*machine))));
  // A run on another machine may be planned here, so these are remarks and no errors.
  std::vector<std::string> problems = {
      weights, launch_problem(setup.config.comm, mesh_of(setup.options, setup.schedule).size())};
  if (const std::string cause = setup.options.kind.on_gpu() ? cuda::why_not() : ""; !cause.empty())
    problems.push_back("cluster.device is cuda: " + cause);
  for (const std::string& problem : problems)
    if (!problem.empty()) out.push_back("train would refuse here: " + problem);
  return out;
}

}  // namespace

void check_weights_fit(const RunSetup& setup) {
  if (const std::string problem = weights_problem(setup, memory_by_rank(setup)); !problem.empty())
    throw user_error("{}", problem);
}

BesideWeights beside_weights(const TrainerOptions& options, const Schedule& schedule,
                             const WeightBytes& held) {
  BesideWeights bytes;
  if (const std::int64_t data = mesh_of(options, schedule).data(); data > 1)
    bytes.reduction = held.gradients + held.gradients / data * (data - 1);
  if (options.deferred_validation) bytes.rollback = held.kept;
  return bytes;
}

std::vector<RankMemory> memory_by_rank(const RunSetup& setup) {
  const auto& [config, schedule, options, predicted, notes] = setup;
  const StagedModel model = staged_model(options, schedule);
  std::vector<std::int64_t> slice_bytes;
  for (int slice = 0; slice < schedule.num_slices; ++slice)
    slice_bytes.push_back(boundary_bytes(model, slice_tokens(model, schedule, slice)));
  const std::vector<std::int64_t> buffers = peak_buffer_bytes(schedule, slice_bytes);
  const MeshShape mesh = mesh_of(options, schedule);
  std::vector<RankMemory> ranks(static_cast<std::size_t>(schedule.num_devices()));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RankMemory& rank = ranks[r];
    for (int other = 0; other < mesh.size(); ++other)
      if (place_of(other, mesh).pipeline == static_cast<int>(r)) rank.ranks.push_back(other);
    // With two pipes a device may hold both copies of a stage; they share their weights.
    const auto& placed = schedule.placement.stages_of(static_cast<int>(r));
    const std::set<int> stages(placed.begin(), placed.end());
    rank.stages.assign(stages.begin(), stages.end());
    for (const int stage : rank.stages)
      rank.layers.push_back(model.layers_per_stage[static_cast<std::size_t>(stage)]);
    const WeightBytes held = weight_bytes(model, rank.stages);
    rank.weights = held.weights;
    rank.gradients = held.gradients;
    rank.optimizer = held.optimizer;
    rank.stash = static_cast<std::int64_t>(predicted.devices[r].peak_bytes);
    rank.buffers = buffers[r];
    const BesideWeights beside = beside_weights(options, schedule, held);
    rank.reduction = beside.reduction;
    rank.rollback = beside.rollback;
    rank.traffic = step_traffic(model, schedule, static_cast<int>(r));
    rank.workspace = workspace_bytes(model, schedule, rank.stages);
  }
  return ranks;
}

std::string dry_run_text(const RunSetup& setup, const std::vector<std::string>& resume) {
  const Schedule& schedule = setup.schedule;
  const std::vector<RankMemory> ranks = memory_by_rank(setup);
  const std::vector<Class> classes = shown_classes(ranks);
  std::vector<std::string> header = {"rank", "stages", "layers"};
  for (const Class& c : classes)
    header.emplace_back(c.name);
  TextTable table(header);
  table.left_align(1);
  table.left_align(2);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::vector<std::string> row = {number_ranges(ranks[r].ranks),
                                    fmt::format("{}", fmt::join(ranks[r].stages, ",")),
                                    fmt::format("{}", fmt::join(ranks[r].layers, ","))};
    for (const Class& c : classes)
      row.push_back(mebibytes(static_cast<double>(c.bytes(ranks[r]))));
    table.add(row);
  }
  std::vector<std::string> row = {"all", "", ""};
  for (const Class& c : classes)
    row.push_back(mebibytes(static_cast<double>(sum(ranks, c))));
  table.add(row);
  const MeshShape mesh = mesh_of(setup.options, schedule);
  std::string out =
      fmt::format("{} on {}{}, {} of {}, backend {}; MiB per rank:\n{}", schedule.name,
                  counted(mesh.size(), "rank"), mesh_text(mesh),
                  counted(schedule.num_microbatches, "microbatch"),
                  counted(staged_model(setup.options, schedule).sequences, "sequence"),
                  setup.config.comm.backend, table.text());
  if (const auto kinds = moving(ranks); !kinds.empty()) {
    std::vector<std::string> names = {"rank"};
    for (const TrafficClass kind : kinds)
      names.emplace_back(traffic_name(kind));
    TextTable moved(names);
    for (const RankMemory& rank : ranks) {
      std::vector<std::string> cells = {number_ranges(rank.ranks)};
      for (const TrafficClass kind : kinds)
        cells.push_back(with_commas(fmt::format("{}", rank.traffic.of(kind))));
      moved.add(cells);
    }
    out +=
        fmt::format("elements that a rank sends per step (docs/parallelism.md):\n{}", moved.text());
  }
  for (const std::string& remark : remarks(setup, ranks, resume))
    out += remark + "\n";
  return out;
}

std::string dry_run_json(const RunSetup& setup, const std::vector<std::string>& resume) {
  const std::vector<RankMemory> ranks = memory_by_rank(setup);
  Json rows = Json::array(), totals;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Json row = {{"rank", ranks[r].ranks.front()},
                {"ranks", ranks[r].ranks},
                {"stages", ranks[r].stages},
                {"layers", ranks[r].layers}};
    for (const Class& c : kClasses)
      row[c.name] = c.bytes(ranks[r]);
    for (int c = 0; c < kNumTrafficClasses; ++c) {
      const auto kind = static_cast<TrafficClass>(c);
      row["traffic"][std::string(traffic_name(kind))] = ranks[r].traffic.of(kind);
    }
    rows.push_back(row);
  }
  for (const Class& c : kClasses)
    totals[c.name] = sum(ranks, c);
  const std::optional<std::int64_t> machine = machine_bytes(setup);
  const Json out = {{"schedule", setup.schedule.name},
                    {"backend", setup.config.comm.backend},
                    {"ranks", rows},
                    {"totals", totals},
                    {"machine", machine ? Json(*machine) : Json()},
                    {"fits", machine ? Json(needed_bytes(setup, ranks) <= *machine) : Json()},
                    {"remarks", remarks(setup, ranks, resume)}};
  return out.dump(2) + "\n";
}

}  // namespace sluice::cli
