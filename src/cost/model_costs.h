// A model cut into the stages of a schedule: what its ops keep and how much they work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cost/costs.h"
#include "cost/parameters.h"
#include "cost/stash.h"

namespace sluice {

struct StagedModel {
  ModelShape shape;
  std::vector<std::int64_t> layers_per_stage;
  RecomputeLevel level = RecomputeLevel::none;
  std::int64_t element_bytes = 4;  // of an activation, and of a weight
  std::int64_t sequences = 1;      // of a microbatch
  std::int64_t sequence_length = 0;
  std::int64_t tensor = 1;          // ranks that share each stage; costs are those of one of them
  bool sequence_norms = false;      // they divide the tokens between the products
  bool scatter = false;             // they divide what is sent to the next stage
  std::int64_t shard = 1;           // ranks that divide the optimizer's states
  std::int64_t replicate = 1;       // copies of these
  std::int64_t gradient_bytes = 4;  // of an element of a weight's gradient
  std::int64_t moments = 2;         // that the optimizer keeps of each element: AdamW's two
  std::int64_t moment_bytes = 4;
  bool masters = true;  // of narrow weights, in fp32
  bool gpu = false;
  bool head_in_forward = false;  // as in StashQuery

  StageLayers layers_of(int stage) const;
};

// What a rank with these stages, all different, holds from start to end; `optimizer` is moments and
// masters.
struct WeightBytes {
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
  // What Optimizer::keep() copies: of the rows that the rank updates, masters or else weights, and
  // moments.
  std::int64_t kept = 0;
};
WeightBytes weight_bytes(const StagedModel& model, std::span<const int> stages);

// Tokens of a slice over all sequences of a microbatch.
std::int64_t slice_tokens(const StagedModel& model, const Schedule& schedule, int slice);
// What the functions of stash.h and workspace.h ask.
StashQuery query_of(const StagedModel& model, const Schedule& schedule, int slice);

// What a rank sends to the next stage of so many tokens.
std::int64_t boundary_bytes(const StagedModel& model, std::int64_t tokens);

// Bytes that each op keeps and sends. All ops take as long, since only their order matters for
// memory; messages are free.
Costs byte_costs(const StagedModel& model, const Schedule& schedule);

// FLOPs that a step executes per token, forward and backward, on top of cost/flops.h: with all that
// is computed again, be it by recomputation, by attention's backward pass or by the head, which
// computes its logits twice. The planner balances stages by it. `length` is that of a sequence.
double block_work(const ModelShape& shape, RecomputeLevel level, std::int64_t length);
double head_work(const ModelShape& shape);

}  // namespace sluice
