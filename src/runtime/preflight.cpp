#include "sluice/runtime/preflight.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "sluice/base/error.h"
#include "sluice/cost/parameters.h"
#include "sluice/run/batch_planner.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "sluice/runtime/files/run_id.h"
#include "sluice/runtime/planned_batch.h"
#include "sluice/runtime/weights/saved_model.h"
#include "sluice/runtime/weights/saved_tensors.h"

namespace sluice {
namespace {

// Weights and optimizer states of the whole model.
std::vector<TensorSpec> saved_tensors(const RunPlan& plan) {
  const auto dtype_of = [](NumberType type) {
    return type == NumberType::bfloat16 ? Dtype::bf16 : Dtype::f32;
  };
  std::vector<TensorSpec> out;
  for (const ParameterShape& parameter :
       stage_parameters(plan.shape, {0, plan.shape.layers, true, true})) {
    const auto add = [&](std::string_view state, NumberType type) {
      out.push_back({.name = parameter.name + std::string(state),
                     .dtype = dtype_of(type),
                     .shape = parameter.shape});
    };
    add("", plan.config.training.dtype);
    for (const StateKind& state : states_of(plan.config, parameter))
      add(state.suffix, state.type);
  }
  return out;
}

// The step that the run would resume from, 0 for none; `remarks` gets what to know about it.
std::int64_t check_checkpoint(const RunPlan& plan, int rollback,
                              std::vector<std::string>& remarks) {
  const Config& config = plan.config;
  const std::optional<FoundCheckpoint> found = find_checkpoint(config.checkpoint, rollback);
  if (!found) return 0;
  const Checkpoint checkpoint(found->folder);
  check_same_model(checkpoint, config);
  const bool tied = config.model.tied_embeddings;
  std::vector<std::string> names, states;
  for (const TensorSpec& wanted : saved_tensors(plan)) {
    const bool state = role_of(wanted.name) == TensorRole::state;
    (state ? states : names).push_back(wanted.name);
    if (!state || !begins_anew(checkpoint, wanted.name, config))
      find_tensor(checkpoint, wanted, tied);
  }
  check_none_left(checkpoint, names, tied);
  const std::int64_t step = checkpoint.manifest().info.step;
  if (step == 0) return step;
  for (const PassedOver& passed : found->passed_over)
    remarks.push_back(passed.damage.empty()
                          ? fmt::format("train would set step {} aside", *passed.step)
                          : "train would pass over a damaged file: " + passed.damage);
  remarks.push_back(fmt::format("train would resume from step {} of {}", step, found->folder));
  if (const std::string change = changed_optimizer(checkpoint, states, config); !change.empty())
    remarks.push_back(change);
  if (const std::string settings = changed_settings(checkpoint, config); !settings.empty())
    remarks.push_back("train would resume with other settings: " + settings);
  if (plan.planner)
    if (const std::string changes =
            changed_planner(checkpoint.manifest().info.state, plan.planner->identity);
        !changes.empty())
      remarks.push_back("train would resume with other costs: batches would be planned by " +
                        changes);
  if (step >= config.training.steps)
    remarks.push_back(
        fmt::format("train would have nothing to do: training.steps is {}", config.training.steps));
  return step;
}

// A batch may be larger than memory and slow to read: of a large one only both ends are read.
void check_batch(const Dataset& training, std::int64_t first, std::int64_t num_sequences) {
  constexpr std::int64_t kEnd = 64;
  for (std::int64_t n = 0; n < num_sequences; ++n)
    if (n < kEnd || n >= num_sequences - kEnd) training.sample(first + n);
}

}  // namespace

void check_writable(const std::string& folder) {
  std::string path = folder;
  while (!is_there(path) && parent_folder(path) != path)
    path = parent_folder(path);
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) throw file_error("write to", path, errno);
  if (!S_ISDIR(status.st_mode)) throw file_error("write to", path, ENOTDIR);
  if (::access(path.c_str(), W_OK | X_OK) != 0) throw file_error("write to", path, errno);
}

BeforeRun check_before_run(const RunPlan& plan, const Dataset* training, int rollback) {
  const Config& config = plan.config;
  BeforeRun before;
  const std::int64_t step = before.resumed = check_checkpoint(plan, rollback, before.remarks);
  const std::int64_t batch = config.training.global_batch_size;
  if (training) check_batch(*training, step * batch, batch);
  if (const std::string note = check_batch_plans(plan, training, step); !note.empty())
    before.remarks.push_back(note);
  if (!config.checkpoint.folder.empty()) {
    // The latest one is where the run would start.
    if (config.checkpoint.load != "latest") check_start_step(config.checkpoint.folder, step);
    check_writable(config.checkpoint.folder);
  }
  if (!config.metrics.folder.empty()) check_writable(config.metrics.folder);
  return before;
}

}  // namespace sluice
