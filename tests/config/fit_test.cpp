// The configuration: what does not fit together, and what is worked out.
#include <gtest/gtest.h>

#include "sluice/base/text.h"
#include "sluice/config/config.h"
#include "sluice/data/tokenizer.h"

namespace sluice {
namespace {

using Words = std::vector<std::string>;

Config read(const std::string& text, const Words& flags = {}) {
  return load_config_text(text, "a.toml", flags).values;
}

std::string joined(const std::vector<std::string>& lines) { return join(lines, "\n"); }

// The problems of the defaults with these flags.
std::string problems(const Words& flags) { return joined(validate_config(read("", flags))); }

TEST(Config, TheDefaultsFitTogether) {
  EXPECT_EQ(problems({}), "");
  EXPECT_EQ(Config{}.model.vocab_size, kByteVocabulary);
}

TEST(Config, WhatDoesNotFitTogetherIsSaid) {
  struct Case {
    Words flags;
    std::string starts;
  };
  const std::vector<Case> cases = {
      {{"--model.heads=3"}, "model.heads is 3: does not divide model.dim 128"},
      {{"--model.shape=llama", "--model.dim=12"}, "model.heads is 4: each head then has 3"},
      {{"--model.shape=llama", "--model.kv_heads=3"}, "model.kv_heads is 3: does not divide"},
      {{"--model.kv_heads=2"}, "model.kv_heads is 2: gpt2 has one for each"},
      {{"--model.rope_scaling=llama3"},
       "model.rope_scaling is llama3 and model.shape is gpt2: only llama has rotary positions"},
      {{"--model.shape=llama", "--model.rope_scaling=llama3", "--model.rope_high_freq_factor=1"},
       "model.rope_high_freq_factor is 1: needs to be above model.rope_low_freq_factor 1"},
      {{"--model.shape=llama", "--model.rope_factor=32"},
       "model.rope_factor is 32 and model.rope_scaling is none: it has no effect"},
      {{"--model.shape=llama", "--model.rope_original_positions=4096"},
       "model.rope_original_positions is 4096 and model.rope_scaling is none"},
      {{"--model.positions=255"}, "training.sequence_length is 256: longer than model.positions"},
      {{"--data.format=text", "--model.vocab_size=256"},
       "model.vocab_size is 256: data.format text"},
      {{"--data.format=bytes", "--model.vocab_size=256"},
       "model.vocab_size is 256: data.format bytes"},
      {{"--data.format=bytes", "--data.tokenizer=t.json", "--model.vocab_size=257"},
       "data.format is bytes and data.tokenizer is 't.json'"},
      {{"--data.format=jsonl", "--model.shape=bert"}, "model.vocab_size is 257: data.format jsonl"},
      {{"--training.gradient_dtype=bf16"},
       "training.gradient_dtype is bfloat16: training.dtype is float32"},
      {{"--optimizer.rounding=stochastic"},
       "optimizer.rounding is stochastic: weights and states are float32"},
      {{"--optimizer.rounding=stochastic", "--optimizer.master_weights=false"},
       "optimizer.rounding is stochastic: weights and states are float32"},
      {{"--optimizer.rounding=stochastic", "--training.dtype=bf16"},
       "optimizer.rounding is stochastic: bfloat16 weights have float32 masters and the states are "
       "float32, so no update is rounded; leave the key out, or set optimizer.master_weights"},
      {{"--optimizer.rounding=stochastic", "--optimizer.name=sgd", "--optimizer.state_dtype=bf16"},
       "optimizer.rounding is stochastic"},
      {{"--optimizer.momentum=0.9"},
       "optimizer.momentum is given, and only optimizer.name = muon reads it: leave it out"},
      {{"--optimizer.name=muon", "--optimizer.momentum_decay=0.1"},
       "optimizer.momentum_decay is given, and only optimizer.name = nadam reads it"},
      {{"--optimizer.name=muon", "--parallelism.sharding=parameters",
        "--parallelism.data_parallel_shard_degree=2"},
       "parallelism.sharding is parameters: it divides matrices by rows, and optimizer.name = "
       "muon"},
      {{"--cluster.partitions=8"}, "cluster.partitions is 8 and cluster.device is cpu"},
      {{"--cluster.sms_per_partition=8"}, "cluster.sms_per_partition is 8 and cluster.partitions"},
      {{"--cluster.device=cuda", "--cluster.partitions=8"},
       "cluster.partitions is 8 and parallelism.pipeline_parallel_degree is 1"},
      {{"--cluster.device=cuda", "--comm.backend=mpi"},
       "cluster.device is cuda and comm.backend is mpi"},
      {{"--comm.backend=nccl"}, "comm.backend is nccl and cluster.device is cpu"},
      {{"--comm.backend=nccl", "--cluster.device=cuda", "--cluster.partitions=8"},
       "cluster.partitions is 8 and comm.backend is nccl"},
      {{"--cluster.device=cuda", "--parallelism.data_parallel_shard_degree=2"},
       "cluster.device is cuda with 2 ranks beside the pipeline's"},
      {{"--parallelism.num_microbatches=5"}, "parallelism.num_microbatches is 5: does not divide"},
      {{"--parallelism.data_parallel_replicate_degree=3"},
       "training.global_batch_size is 16: does not divide among 3 data-parallel copies"},
      {{"--parallelism.data_parallel_shard_degree=8", "--parallelism.num_microbatches=4"},
       "parallelism.num_microbatches is 4: does not divide training.global_batch_size 16, of which "
       "each of 8 data-parallel copies takes 2"},
      {{"--parallelism.sharding=parameters"},
       "parallelism.sharding is parameters and parallelism.data_parallel_shard_degree is 1"},
      {{"--parallelism.tensor_parallel_degree=8", "--model.vocab_size=264"},
       "model.heads is 4: does not divide among parallelism.tensor_parallel_degree 8"},
      {{"--parallelism.tensor_parallel_degree=2"},
       "model.vocab_size is 257: does not divide among parallelism.tensor_parallel_degree 2"},
      {{"--parallelism.tensor_parallel_degree=2", "--model.vocab_size=258", "--model.ffn_dim=99"},
       "model.ffn_dim is 99: does not divide among parallelism.tensor_parallel_degree 2"},
      {{"--parallelism.tensor_parallel_degree=2", "--model.vocab_size=258", "--model.shape=llama",
        "--model.heads=6", "--model.kv_heads=3", "--model.dim=96"},
       "model.kv_heads is 3: neither a multiple nor a divisor"},
      {{"--parallelism.device_memory_mib=9,9,9", "--parallelism.pipeline_parallel_degree=2"},
       "parallelism.device_memory_mib lists 3 caps, and parallelism.pipeline_parallel_degree is 2"},
      {{"--parallelism.device_memory_mib=9,0", "--parallelism.pipeline_parallel_degree=2"},
       "parallelism.device_memory_mib has a 0 in its list"},
      {{"--parallelism.device_memory_mib=9", "--parallelism.memory_cap=4",
        "--parallelism.pipeline_parallel_schedule=zb"},
       "parallelism.memory_cap is 4 and parallelism.device_memory_mib is set"},
      {{"--validation.interval=5"}, "validation.interval is 5: data.validation_fraction is 0"},
      {{"--parallelism.pipeline_parallel_schedule=seq1f1b", "--parallelism.slices=2",
        "--model.shape=bert"},
       "parallelism.slices is 2: bert attends"},
      {{"--parallelism.slices=2"}, "parallelism.slices is 2: 1f1b does not cut sequences"},
      {{"--parallelism.pipeline_parallel_schedule=seq1f1b", "--parallelism.slices=257"},
       "parallelism.slices is 257: a sequence of 256"},
      {{"--parallelism.pipeline_parallel_schedule=seq1f1b", "--parallelism.slice_sizes=100,155"},
       "parallelism.slice_sizes sums to 255"},
      {{"--parallelism.pipeline_parallel_schedule=seq1f1b", "--parallelism.slice_sizes=100,156",
        "--parallelism.slices=3"},
       "parallelism.slice_sizes names 2 slices"},
      {{"--parallelism.pipeline_parallel_degree=3"}, "model.layers is 8: does not divide by the 3"},
      {{"--parallelism.pipeline_parallel_degree=11", "--parallelism.layers_per_stage=auto"},
       "model.layers is 8: too few for 11 stages"},
      {{"--parallelism.layers_per_stage=7"}, "parallelism.layers_per_stage sums to 7"},
      {{"--parallelism.layers_per_stage=4,4"}, "parallelism.layers_per_stage has 2 numbers"},
      {{"--parallelism.pipeline_parallel_degree=3", "--parallelism.layers_per_stage=4,0,4"},
       "parallelism.layers_per_stage gives stage 1 no layer"},
      {{"--parallelism.memory_cap=4"},
       "parallelism.memory_cap is 4: 1f1b takes no cap; zb and adaptive-v do"},
      {{"--parallelism.group_size=4"},
       "parallelism.group_size is 4: 1f1b has no groups; interleaved-1f1b, interleaved-zb and gis "
       "do"},
      {{"--parallelism.pipeline_parallel_schedule=zb"},
       "zb needs a cap: set parallelism.device_memory_mib, or parallelism.memory_cap"},
      {{"--parallelism.pipeline_parallel_schedule=v-hafl"},
       "parallelism.pipeline_parallel_schedule: no schedule is named 'v-hafl': did you mean "
       "'v-half'"},
      {{"--parallelism.pipeline_parallel_schedule=block"},
       "parallelism.pipeline_parallel_schedule is block"},
      {{"--parallelism.pipeline_parallel_schedule=v-half", "--parallelism.stages_per_device=3",
        "--model.layers=6"},
       "parallelism.stages_per_device is 3: v-half always has 2; leave the key out"},
      {{"--generate.prompt=a", "--checkpoint.folder="}, "generate.prompt is set and checkpoint"},
      {{"--generate.prompt=a", "--model.vocab_size=300"}, "generate.prompt is set and model.vocab"},
      {{"--parallelism.pipeline_parallel_schedule_csv=a.csv", "--parallelism.memory_cap=4"},
       "parallelism.memory_cap is 4: the CSV's order is fixed"},
      {{"--parallelism.pipeline_parallel_schedule_csv=a.csv", "--parallelism.stages_per_device=2"},
       "parallelism.stages_per_device is 2: the CSV sets it"},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> found = validate_config(read("", c.flags));
    ASSERT_EQ(found.size(), 1u) << c.starts << "\n" << joined(found);
    EXPECT_TRUE(found[0].starts_with(c.starts)) << found[0];
  }
}

TEST(Config, AWarmUpLongerThanTheRunIsShortenedAndSaidSo) {
  const Config longer = read("", {"--lr_scheduler.warmup_steps=1001"});
  EXPECT_TRUE(validate_config(longer).empty());
  EXPECT_EQ(resolve_config(longer).lr_scheduler.warmup_steps, 1000);
  EXPECT_EQ(config_notes(longer),
            std::vector<std::string>{"lr_scheduler.warmup_steps is 1001 and training.steps is "
                                     "1000: the warm-up is shortened to 1000 steps"});
  const Config as_long = read("", {"--lr_scheduler.warmup_steps=1000"});
  EXPECT_EQ(resolve_config(as_long).lr_scheduler.warmup_steps, 1000);
  EXPECT_TRUE(config_notes(as_long).empty());
}

TEST(Config, AllProblemsAreSaidAtOnce) {
  EXPECT_EQ(validate_config(read("", {"--model.heads=3", "--validation.interval=5",
                                      "--parallelism.num_microbatches=3"}))
                .size(),
            3u);
}

TEST(Config, WhatFitsTogetherIsAccepted) {
  EXPECT_EQ(problems({"--parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
                      "--parallelism.pipeline_parallel_degree=4"}),
            "");
  EXPECT_EQ(problems({"--parallelism.pipeline_parallel_schedule=zb", "--parallelism.memory_cap=4",
                      "--parallelism.pipeline_parallel_degree=2"}),
            "");
  // Costs and caps say something of every run.
  for (const char* caps : {"--parallelism.device_memory_mib=9", "--parallelism.device_memory_mib=0",
                           "--parallelism.device_memory_mib=9,7"})
    EXPECT_EQ(
        problems({caps, "--parallelism.costs=a.json", "--parallelism.pipeline_parallel_degree=2"}),
        "");
  EXPECT_EQ(
      problems({"--parallelism.pipeline_parallel_schedule=zb", "--parallelism.device_memory_mib=9",
                "--parallelism.pipeline_parallel_degree=2"}),
      "");
  EXPECT_EQ(problems({"--parallelism.layers_per_stage=0,4,4,0",
                      "--parallelism.pipeline_parallel_degree=4"}),
            "");
  EXPECT_EQ(problems({"--model.shape=bert", "--model.vocab_size=258", "--data.format=text"}), "");
  EXPECT_EQ(problems({"--cluster.device=cuda", "--comm.backend=nccl", "--model.vocab_size=258",
                      "--parallelism.tensor_parallel_degree=2",
                      "--parallelism.data_parallel_shard_degree=2"}),
            "");
}

TEST(Config, WhatIsLeftToBeWorkedOutIsWorkedOut) {
  const Config gpt = resolve_config(read("", {"--parallelism.pipeline_parallel_schedule=v-half"}));
  EXPECT_EQ(gpt.model.kv_heads, 4);
  EXPECT_EQ(gpt.model.ffn_dim, 512);
  EXPECT_EQ(gpt.model.positions, 256);
  EXPECT_EQ(gpt.parallelism.num_microbatches, 16);
  EXPECT_EQ(gpt.parallelism.stages_per_device, 2);
  EXPECT_EQ(gpt.parallelism.slice_sizes, SliceSizes{});
  EXPECT_EQ(resolve_config(gpt), gpt);

  const Config llama =
      resolve_config(read("", {"--model.shape=llama", "--model.dim=4096", "--parallelism.slices=3",
                               "--parallelism.pipeline_parallel_schedule=seq1f1b"}));
  EXPECT_EQ(llama.model.ffn_dim, 11008);  // of Llama 2 7B
  EXPECT_EQ(llama.parallelism.slice_sizes, (SliceSizes{SliceRule::list, {86, 85, 85}}));
  EXPECT_EQ(resolve_config(read("", {"--parallelism.slice_sizes=100,156"})).parallelism.slices, 2);
  // 0 is no cap.
  EXPECT_TRUE(resolve_config(read("", {"--parallelism.device_memory_mib=0"}))
                  .parallelism.device_memory_mib.empty());
}

TEST(Config, TheQuickstartIsReadAndFits) {
  const LoadedConfig quickstart =
      load_config(SLUICE_SOURCE_DIR "/examples/quickstart.toml", Words{"--data.path=corpus.txt"});
  EXPECT_EQ(joined(validate_config(quickstart.values)), "");
  EXPECT_EQ(quickstart.values.parallelism.pipeline_parallel_schedule, "v-half");
  EXPECT_EQ(read(print_config(quickstart)), quickstart.values);
}

}  // namespace
}  // namespace sluice
