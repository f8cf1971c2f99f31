// Training over threads, for tests: any schedule, any data, and all that came of it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sluice/runtime/trainer.h"
#include "support/gradients.h"

namespace sluice::test {

// 8 layers, dim 16, 64 tokens, 16 positions.
ModelShape shape_of(ModelFamily family, bool tied);

// 4000 tokens with a little structure; one document, unless `starts` says otherwise.
std::shared_ptr<const TokenSource> tokens(std::vector<std::int64_t> starts = {0, 4000});

struct Case {
  std::string schedule;
  int devices = 1;
  int slices = 1;
  double memory_cap = 0;
  std::vector<std::int64_t> layers = {};  // per stage; empty: even
  NumberType dtype = NumberType::float32;
};

Schedule lowered_schedule(const Case& c, int microbatches);

struct TrainOptions {
  int steps = 1;
  RecomputeLevel level = RecomputeLevel::none;
  OptimizerKind optimizer = OptimizerKind::adamw;
  // Gradients and states in bf16 and no masters, what is updated rounded stochastically.
  bool narrow = false;
  int microbatches = 8;
  std::int64_t global_batch_size = 16;
  std::shared_ptr<const TokenSource> source = tokens();
  DatasetOptions data = {.sequence_length = 16, .vocab_size = 64, .seed = 3};
  MeshShape mesh = {};   // its pipeline is the schedule's
  bool sharded = false;  // the shard ranks divide the parameters, not only the states
  std::function<void(Schedule& lowered)> change_schedule = {};
  // How batches of unequal sequences are dealt, step after step, from their lengths; empty: longest
  // first.
  std::function<BatchPlan(std::span<const std::int64_t> lengths)> deal = {};
  bool sequence_norms = false;
  bool scatter = true;
  std::int64_t bucket_bytes = 4096;
  double max_norm = 0.5;
  bool deferred = false;
  bool gpu = false;
  int partitions = 0;  // of the GPU; 0: ranks share it
  // Makes the world from that of threads, and runs the body with it; empty: it is theirs.
  std::function<void(Communicator& threads, const std::function<void(Communicator&)>& body)> over =
      {};
  bool gpu_each = false;  // rank r has GPU r
};

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
  std::map<std::string, at::Tensor> first_gradients;
  std::map<std::string, at::Tensor> states;  // the optimizer's
  std::vector<std::int64_t> peaks;           // per rank
  // Of them: per device of the pipeline, or of unequal sequences per rank, in the last step.
  std::vector<std::int64_t> predicted;
  std::vector<Traffic> traffic;            // per rank
  std::vector<Traffic> predicted_traffic;  // likewise, of unequal sequences
};

// The run of these options.
RunPlan plan_of(const Case& c, const ModelShape& shape, const TrainOptions& options);

// Ranks are threads of one core each.
Trained train(const Case& c, const ModelShape& shape, const TrainOptions& options);

void expect_equal_bits(const Trained& a, const Trained& b);

}  // namespace sluice::test
