// Run plans for tests, from a shape and what is done with it; and configurations to plan.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sluice/cost/slices.h"
#include "sluice/run/plan.h"

namespace sluice::test {

// Layers and slices are dealt evenly; all else is as a configuration has it by default.
inline RunPlan plan_for(const ModelShape& shape, Schedule schedule, std::int64_t sequence_length,
                        std::int64_t global_batch_size) {
  RunPlan plan;
  plan.shape = shape;
  plan.schedule = std::move(schedule);
  if (plan.sliced() && plan.schedule.slice_sizes.empty())
    plan.schedule.slice_sizes = even_slice_sizes(sequence_length, plan.schedule.num_slices);
  plan.mesh.pipeline = plan.schedule.num_devices();
  plan.layers_per_stage = even_layers(shape.layers, plan.schedule.num_stages());
  plan.config.training.sequence_length = static_cast<int>(sequence_length);
  plan.config.training.global_batch_size = static_cast<int>(global_batch_size);
  return plan;
}

// Stages without a program, for one microbatch of sequences that are cut at `bounds`.
inline RunPlan plan_of_stages(const ModelShape& shape, std::vector<std::int64_t> layers_per_stage,
                              const std::vector<std::int64_t>& bounds, std::int64_t sequences = 1) {
  RunPlan plan;
  plan.shape = shape;
  plan.layers_per_stage = std::move(layers_per_stage);
  plan.schedule.num_microbatches = 1;
  plan.schedule.num_slices = static_cast<int>(bounds.size()) - 1;
  for (std::size_t slice = 1; plan.sliced() && slice < bounds.size(); ++slice)
    plan.schedule.slice_sizes.push_back(bounds[slice] - bounds[slice - 1]);
  plan.config.training.sequence_length = static_cast<int>(bounds.back());
  plan.config.training.global_batch_size = static_cast<int>(sequences);
  return plan;
}

// What plan_run takes; on threads.
struct SmallConfig {
  std::string schedule = "1f1b";
  int layers = 8;
  int dim = 32;
  int heads = 2;
  int sequence_length = 32;
  int global_batch_size = 8;
  int devices = 2;
  int microbatches = 0;  // 0: one per sequence
};

inline Config small_config(const SmallConfig& small) {
  Config config;
  config.model.layers = small.layers;
  config.model.dim = small.dim;
  config.model.heads = small.heads;
  config.training.steps = 1000;
  config.training.sequence_length = small.sequence_length;
  config.training.global_batch_size = small.global_batch_size;
  config.parallelism.pipeline_parallel_degree = small.devices;
  config.parallelism.pipeline_parallel_schedule = small.schedule;
  config.parallelism.num_microbatches = small.microbatches;
  config.comm.backend = Backend::threads;
  return config;
}

}  // namespace sluice::test
