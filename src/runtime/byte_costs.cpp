#include "runtime/byte_costs.h"

#include "cost/stash.h"

namespace sluice {

Costs byte_costs(const TrainerOptions& options, const Schedule& schedule) {
  const std::int64_t sequences = options.global_batch_size / schedule.num_microbatches;
  const SliceBounds bounds = slice_bounds(schedule, options.sequence_length);
  Costs costs(schedule.num_stages(), schedule.num_slices);
  costs.measured = true;
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const auto c = static_cast<std::size_t>(slice);
      const StashQuery query{.shape = options.shape,
                             .level = options.level,
                             .tokens = sequences * (bounds[c + 1] - bounds[c]),
                             .element_bytes = options.dtype == at::kFloat ? 4 : 2,
                             .sliced = schedule.num_slices > 1};
      const auto blocks =
          static_cast<double>(options.layers_per_stage[static_cast<std::size_t>(stage)]);
      const StashBytes block = block_stash(query);
      OpCosts& op = costs.at(stage, slice);
      op.f = op.i = op.w = 1;
      op.b = 2;
      op.after_f = blocks * static_cast<double>(block.after_f);
      op.after_i = blocks * static_cast<double>(block.after_i);
      op.kv_gradient =
          blocks * static_cast<double>(key_value_gradient_bytes(options.shape, query.tokens));
      const auto sent = static_cast<double>(query.tokens * options.shape.dim * query.element_bytes);
      const bool first = stage == 0, last = stage == schedule.num_stages() - 1;
      if (!last) op.sent_forward = sent;
      if (!first) op.sent_backward = sent;
      for (const auto& [has, end] :
           {std::pair{first, embedding_stash(query)}, std::pair{last, head_stash(query)}})
        if (has) {
          op.after_f += static_cast<double>(end.after_f);
          op.after_i += static_cast<double>(end.after_i);
        }
    }
  return costs;
}

}  // namespace sluice
