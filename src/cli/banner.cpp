#include "sluice/cli/banner.h"

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/cost/parameters.h"
#include "sluice/run/step_kinds.h"

namespace sluice::cli {
namespace {

std::string folder_text(const char* what, const std::string& folder) {
  return folder.empty() ? fmt::format("no {}", what) : fmt::format("{} in {}", what, folder);
}

}  // namespace

std::vector<std::string> banner(const RunPlan& plan, const Datasets& data, int threads_per_rank,
                                const std::string& device) {
  const Config& config = plan.config;
  const Schedule& schedule = plan.schedule;
  const MeshShape& mesh = plan.mesh;
  std::string data_line =
      fmt::format("data: {}, {} of {}", config.data.path,
                  counted(data.training.num_samples(), "training sample"),
                  plan.ragged() ? fmt::format("1 to {} tokens", config.training.sequence_length)
                                : counted(config.training.sequence_length, "token"));
  if (data.held_out)
    data_line +=
        fmt::format(", {} held out", with_commas(std::to_string(data.held_out->num_samples())));
  return {fmt::format("model: {}, {}, dim {}, {}, {}", config.model.shape,
                      counted(config.model.layers, "layer"), config.model.dim,
                      counted(num_parameters(plan.shape), "parameter"), config.training.dtype),
          fmt::format("mesh: {} data x {} pipeline x {} tensor = {} ({}), {} each, on {}",
                      mesh.data(), mesh.pipeline, mesh.tensor, counted(mesh.size(), "rank"),
                      config.comm.backend, counted(threads_per_rank, "thread"), device),
          fmt::format("schedule: {}, {} per step", schedule.name, microbatches_text(plan)),
          data_line,
          fmt::format("folders: {}, {}", folder_text("checkpoints", config.checkpoint.folder),
                      folder_text("metrics", config.metrics.folder))};
}

}  // namespace sluice::cli
