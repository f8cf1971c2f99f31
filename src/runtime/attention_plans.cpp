#include "sluice/runtime/attention_plans.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "sluice/cost/head_share.h"
#include "sluice/cuda/device.h"
#include "sluice/model/attention_packed.h"
#include "sluice/run/batch_planner.h"

namespace sluice {

namespace {

// The heads that a tensor rank may attend with: all its own, and its share of them for each degree
// that is planned or may be. Shares of the same size need the same plans.
std::vector<LocalShape> attended_shapes(const RunPlan& plan) {
  const LocalShape local = local_shape(plan.shape, plan.mesh.tensor);
  std::set<int> degrees = {1};
  if (plan.batch_plans)
    for (const auto& [step, batch] : plan.batch_plans->steps)
      for (const auto& groups : batch.plan.microbatches)
        for (const SequenceGroup& group : groups)
          degrees.insert(group.degree);
  if (plan.planner) degrees.insert(plan.planner->degrees.begin(), plan.planner->degrees.end());
  std::vector<LocalShape> shapes;
  for (const int degree : degrees) {
    LocalShape& shape = shapes.emplace_back(local);
    if (degree == 1) continue;
    const HeadShare share = head_share(local, degree, 0);
    shape.heads = share.heads;
    shape.kv_heads = std::ssize(share.kv_heads);
  }
  return shapes;
}

}  // namespace

std::string AttentionPlans::line() const {
  return fmt::format(
      "prepared {} cuDNN attention plans for documents of {} to {} tokens in {:.1f} s", count,
      shortest, longest, seconds);
}

AttentionPlans make_attention_plans(const RunPlan& plan, const Machine& machine,
                                    const Dataset& data) {
  const TensorKind kind = tensor_kind(plan, machine.device);
  if (!kind.on_gpu()) return {};
  const int tensor_ranks = plan.mesh.tensor;
  std::vector<std::int64_t> lengths = long_lengths(plan.shape, tensor_ranks, kind.dtype,
                                                   plan.slice_bounds(), machine.long_document);
  const std::int64_t longest = data.longest_document();
  if (lengths.empty() || longest < lengths.front()) return {};
  const auto last = std::lower_bound(lengths.begin(), lengths.end(), longest);
  if (last != lengths.end()) lengths.erase(last + 1, lengths.end());
  const auto start = std::chrono::steady_clock::now();
  const std::vector<LocalShape> shapes = attended_shapes(plan);
  for (const LocalShape& shape : shapes)
    make_attention_plans(lengths, shape, kind.values());
  cuda::synchronize();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {.count = 2 * static_cast<int>(lengths.size() * shapes.size()),
          .shortest = lengths.front(),
          .longest = lengths.back(),
          .seconds = taken.count()};
}

}  // namespace sluice
