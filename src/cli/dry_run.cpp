#include "cli/dry_run.h"

#include <fmt/ranges.h>

#include "base/text.h"
#include "cost/weights.h"

namespace sluice::cli {

std::string dry_run_text(const RunSetup& setup) {
  const auto& [config, schedule, options, predicted] = setup;
  TextTable table({"rank", "stages", "layers", "weights", "gradients", "optimizer", "stash"});
  table.left_align(1);
  const double mib = 1 << 20;
  for (int rank = 0; rank < schedule.num_devices(); ++rank) {
    double weights = 0;
    std::int64_t layers = 0;
    const ModelShape& s = options.shape;
    for (const int stage : schedule.placement.stages_of(rank)) {
      const std::int64_t blocks = options.layers_per_stage[static_cast<std::size_t>(stage)];
      layers += blocks;
      std::int64_t count = blocks * block_weights(s);
      if (stage == 0) count += embedding_weights(s);
      if (stage == schedule.num_stages() - 1) count += head_weights(s);
      weights += static_cast<double>(count);
    }
    const double element = options.dtype == at::kFloat ? 4 : 2;
    double states = options.optimizer.kind == OptimizerKind::adamw ? 8 : 0;
    if (element == 2) states += 4;
    const auto mebibytes = [&](double bytes) { return fmt::format("{:.2f}", bytes / mib); };
    table.add({fmt::format("{}", rank),
               fmt::format("{}", fmt::join(schedule.placement.stages_of(rank), ",")),
               fmt::format("{}", layers), mebibytes(weights * element), mebibytes(weights * 4),
               mebibytes(weights * states),
               mebibytes(predicted.devices[static_cast<std::size_t>(rank)].peak_bytes)});
  }
  return fmt::format("{} on {} ranks, {} microbatches of {} sequences; MiB per rank:\n{}",
                     schedule.name, schedule.num_devices(), schedule.num_microbatches,
                     config.training.global_batch_size / schedule.num_microbatches, table.text());
}

}  // namespace sluice::cli
