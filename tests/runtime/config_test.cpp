// The configuration: what is read, what is refused and how, what does not fit together, printing.
#include "runtime/config/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer.h"
#include "runtime/config/schema.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Words = std::vector<std::string>;

Config read(const std::string& text, const Words& flags = {}) {
  return load_config_text(text, "a.toml", flags).values;
}

// The message of the UserError, or "" when there is none.
std::string refusal(const std::string& text, const Words& flags = {}) {
  try {
    load_config_text(text, "a.toml", flags);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), what.npos) << what;
    EXPECT_LT(what.size(), 1000u) << what;
    return what;
  }
  return "";
}

std::string joined(const std::vector<std::string>& lines) { return join(lines, "\n"); }

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += text;
  return out;
}

// The problems of the defaults with these flags.
std::string problems(const Words& flags) { return joined(validate_config(read("", flags))); }

TEST(Config, FlagsWinOverTheFileAndTheFileOverTheDefaults) {
  const LoadedConfig loaded = load_config_text("[model]\nlayers = 6\nheads = 2\n", "a.toml",
                                               Words{"--model.layers=12", "--debug.seed", "7"});
  EXPECT_EQ(loaded.values.model.layers, 12);
  EXPECT_EQ(loaded.values.model.heads, 2);
  EXPECT_EQ(loaded.values.model.dim, Config{}.model.dim);
  EXPECT_EQ(loaded.values.debug.seed, 7);
  EXPECT_EQ(loaded.origins.at("model.layers"), "flag --model.layers");
  EXPECT_EQ(loaded.origins.at("model.heads"), "a.toml:3");
  EXPECT_FALSE(loaded.origins.contains("model.dim"));
}

TEST(Config, EveryKindOfValueIsReadFromFileAndFlag) {
  const Config file = read(
      "[model]\ntied_embeddings = true\n[optimizer]\nlr = 1\nname = 'AdamW'\n[training]\n"
      "dtype = 'bf16'\n[parallelism]\nslice_sizes = [3, 5]\nlayers_per_stage = [0, 8]\n"
      "[data]\npath = \"a b\\nc\\u00e9\"\n");
  const Config flags =
      read("", {"--model.tied_embeddings", "--optimizer.lr=1", "--optimizer.name", "AdamW",
                "--training.dtype=bf16", "--parallelism.slice_sizes", "[3, 5]",
                "--parallelism.layers_per_stage=0,8", "--data.path=a b\nc\u00e9"});
  EXPECT_EQ(file, flags);
  EXPECT_TRUE(file.model.tied_embeddings);
  EXPECT_EQ(file.optimizer.lr, 1.0);
  EXPECT_EQ(file.optimizer.name, "adamw");
  EXPECT_EQ(file.training.dtype, "bfloat16");
  EXPECT_EQ(file.parallelism.slice_sizes, (std::vector<int>{3, 5}));
  EXPECT_EQ(file.parallelism.layers_per_stage.rule, "list");
  EXPECT_EQ(file.parallelism.layers_per_stage.list, (std::vector<int>{0, 8}));
  EXPECT_EQ(file.data.path, "a b\nc\u00e9");
  EXPECT_EQ(read("[parallelism]\nlayers_per_stage = 'auto'\n").parallelism.layers_per_stage.rule,
            "auto");
  EXPECT_FALSE(read("", {"--metrics.progress", "false"}).metrics.progress);
}

TEST(Config, WhatIsNarrowMayBeRoundedStochastically) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--training.dtype=bf16", "--optimizer.master_weights=false"},
        std::vector<std::string>{"--training.dtype=bf16", "--optimizer.state_dtype=bf16"},
        std::vector<std::string>{"--optimizer.state_dtype=bf16"},
        std::vector<std::string>{"--training.dtype=bf16", "--training.gradient_dtype=bf16",
                                 "--optimizer.master_weights=false", "--optimizer.name=sgd"}}) {
    Config config = read("", flags);
    config.optimizer.rounding = "stochastic";
    EXPECT_TRUE(validate_config(config).empty()) << flags[0];
  }
}

TEST(Config, TorchtitansNamesAreUnderstood) {
  const Config config = read(
      "[training]\nseq_len = 99\nseed = 3\n[activation_checkpoint]\nmode = 'full'\n"
      "[lr_scheduler]\nmin_lr_factor = 0.5\n",
      {"--validation.freq=5"});
  EXPECT_EQ(config.training.sequence_length, 99);
  EXPECT_EQ(config.debug.seed, 3);
  EXPECT_EQ(config.recompute.level, "full");
  EXPECT_EQ(config.lr_scheduler.min_lr_ratio, 0.5);
  EXPECT_EQ(config.validation.interval, 5);
}

TEST(Config, UnknownNamesAreRefusedWithTheNearestOne) {
  EXPECT_EQ(refusal("[model]\nlayer = 8\n"),
            "a.toml:2:1: unknown key model.layer: did you mean model.layers?");
  EXPECT_EQ(refusal("\n[modle]\nlayers = 8\n"),
            "a.toml:2:2: unknown section [modle]: did you mean [model]?");
  EXPECT_EQ(refusal("[model]\nsteps = 8\n"),
            "a.toml:2:1: unknown key model.steps: did you mean training.steps?");
  EXPECT_EQ(refusal("layers = 8\n"), "a.toml:1:1: unknown key layers: did you mean model.layers?");
  EXPECT_EQ(refusal("", {"--model.hedas=8"}),
            "unknown flag --model.hedas: did you mean --model.heads?");
  EXPECT_EQ(refusal("", {"--steps", "8"}), "unknown flag --steps: did you mean --training.steps?");
  EXPECT_EQ(refusal("[model.layers]\nx = 1\n"),
            "a.toml:1:1: model.layers is a table: needs a whole number from 1 to 10000");
  EXPECT_EQ(refusal("[[model]]\nlayers = 1\n"),
            "a.toml:1:3: model is a list: needs to be a section; write [model] and its keys below");
}

TEST(Config, WrongValuesAreRefusedWithPlaceValueAndWhatIsAllowed) {
  EXPECT_EQ(refusal("[model]\nlayers = 'eight'\n"),
            "a.toml:2:10: model.layers is \"eight\": needs a whole number from 1 to 10000");
  EXPECT_EQ(refusal("", {"--model.layers=eight"}),
            "--model.layers is 'eight': needs a whole number from 1 to 10000");
  EXPECT_EQ(refusal("[recompute]\nlevel = 'mpl'\n"),
            "a.toml:2:9: recompute.level is \"mpl\": needs none, elementwise, mlp, "
            "all-but-attention, full; did you mean 'mlp'?");
  EXPECT_EQ(refusal("", {"--model.dropout=0.1"}),
            "--model.dropout is '0.1': needs 0: dropout is not supported; remove the key");
  EXPECT_EQ(refusal("[optimizer]\nlr = nan\n"),
            "a.toml:2:6: optimizer.lr is nan: needs a number from 0 to 1000");
  EXPECT_EQ(refusal("", {"--optimizer.eps=0"}),
            "--optimizer.eps is '0': needs a number above 0 to 1");
  EXPECT_EQ(refusal("", {"--optimizer.beta2=1"}),
            "--optimizer.beta2 is '1': needs a number from 0 to below 1");
  EXPECT_EQ(refusal("", {"--model.layers"}),
            "--model.layers has no value: needs a whole number from 1 to 10000");
  EXPECT_EQ(refusal("", {"model.layers=8"}),
            "'model.layers=8' is not a flag: write --section.key=value");
  EXPECT_EQ(refusal("", {"--data.path=\xff"}), "--data.path is '\\xff': needs text (UTF-8)");
}

TEST(Config, NoNumberIsRoundedWrappedOrGuessed) {
  const std::vector<std::string> bad = {"[model]\nlayers = 8.0",
                                        "[model]\nlayers = true",
                                        "[model]\nlayers = 0",
                                        "[model]\nlayers = -1",
                                        "[model]\nlayers = 4294967297",
                                        "[model]\nlayers = 99999999999999999999",
                                        "[model]\nlayers = 1979-05-27",
                                        "[model]\nlayers = [8]",
                                        "[model]\ntied_embeddings = 1",
                                        "[optimizer]\nlr = inf",
                                        "[optimizer]\nlr = -inf",
                                        "[optimizer]\nlr = 1e999",
                                        "[optimizer]\nlr = '1e-3'",
                                        "[parallelism]\nslice_sizes = [1, 2.5]",
                                        "[parallelism]\nslice_sizes = [4294967297]",
                                        "[parallelism]\nslice_sizes = [0]",
                                        "[parallelism]\nslice_sizes = 4",
                                        "[parallelism]\nlayers_per_stage = []",
                                        "[parallelism]\nlayers_per_stage = 'list'",
                                        "[data]\npath = 3",
                                        "[data]\npath = \"a\\u0000b\"",
                                        "[data]\nvalidation_fraction = 1.0",
                                        "[model]\nlayers = 8\nlayers = 8",
                                        "[model]\nlayers = 8\n[model]\nheads = 2",
                                        "[model]\nlayers =",
                                        "[model"};
  for (const std::string& text : bad)
    EXPECT_TRUE(refusal(text).starts_with("a.toml:")) << text << "\n" << refusal(text);
  for (const std::string flag :
       {"--model.layers=8.0", "--model.layers=", "--model.layers= 8", "--model.layers=4294967297",
        "--model.layers=99999999999999999999", "--optimizer.lr=nan", "--optimizer.lr=1e999",
        "--metrics.progress=yes", "--parallelism.slice_sizes=1,,2", "--parallelism.slice_sizes=[1",
        "--parallelism.layers_per_stage=", "--parallelism.layers_per_stage=list"})
    EXPECT_TRUE(refusal("", {flag}).starts_with("--")) << flag << "\n" << refusal("", {flag});
}

TEST(Config, AKeyGivenTwiceInOnePlaceIsRefused) {
  EXPECT_EQ(refusal("[training]\nseq_len = 8\nsequence_length = 8\n"),
            "a.toml:3:19: training.sequence_length is given twice, first as a.toml:2:11: "
            "training.seq_len; remove one of them");
  EXPECT_EQ(refusal("", {"--debug.seed=1", "--training.seed=1"}),
            "--training.seed is given twice, first as --debug.seed; remove one of them");
}

TEST(Config, FilesThatCannotBeReadAreRefused) {
  const test::TemporaryFolder folder;
  for (const std::string& path : {folder.path(), folder.path() + "/absent.toml"}) {
    try {
      load_config(path, {});
      FAIL() << path;
    } catch (const UserError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("cannot read the configuration " + path))
          << error.what();
    }
  }
  EXPECT_EQ(load_config("", {}).values, Config{});
}

TEST(Config, DeepAndHugeFilesAreRefusedInBoundedTime) {
  const test::TemporaryFolder folder;
  const std::string dotted = repeat("a.", 390);
  const std::vector<std::string> texts = {
      "x = " + repeat("[", 300),
      "x = " + repeat("{a = ", 300),
      "[" + repeat("a.", 300) + "b]\n",
      repeat("a.", 100'000) + "b = 1\n",
      "x = " + repeat("[\n{" + dotted + "b = ", 120) + "1" + repeat("}]", 120),
      "x = " + repeat("[\n{" + dotted + "b = ", 16) + "1" + repeat("}]", 16),
      "[model]\n" + std::string(200'000, 'k') + " = 1\n",
      "[model]\nshape = '" + std::string(200'000, 'k') + "'\n",
      "[" + std::string(200'000, 'k') + "]\n",
      repeat("[model]\n", 1'250'000),
      std::string(10 << 20, '#')};
  for (const std::string& text : texts) {
    const std::string path = folder.write("a.toml", text);
    const auto start = std::chrono::steady_clock::now();
    try {
      load_config(path, {});
      ADD_FAILURE() << text.substr(0, 40);
    } catch (const UserError& error) {
      EXPECT_LT(std::string(error.what()).size(), 1000u);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1))
        << text.substr(0, 40);
  }
  EXPECT_EQ(refusal(repeat("a.", 401)),
            "a.toml:1: too deep: more than 400 dots on a line; is it a configuration?");
  EXPECT_EQ(refusal("x =\n" + repeat("{", 17)),
            "a.toml:2: too deep: more than 16 braces; is it a configuration?");
}

// Random changes of real files, and words thrown together: read, or refused with one line.
TEST(Config, GarbageNeverDoesMoreThanRefuse) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<std::string> pieces = {"[model]",
                                           "[",
                                           "]",
                                           "[[",
                                           "\n",
                                           "=",
                                           ".",
                                           "model",
                                           "layers",
                                           "8",
                                           "-",
                                           "1e400",
                                           "nan",
                                           "'",
                                           "\"\"\"",
                                           "\"",
                                           "{",
                                           "}",
                                           ",",
                                           "#",
                                           "\r",
                                           std::string(1, '\0'),
                                           "\xff",
                                           "\xed\xa0\x80",
                                           "training.steps = 5\n",
                                           "0x",
                                           "1979-05-27T",
                                           "true",
                                           "\\u",
                                           "\xef\xbb\xbf"};
  const std::string whole = config_text(Config{});
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    if (round % 2 == 0) {
      for (std::size_t n = below(30); n > 0; --n)
        text += pieces[below(pieces.size())];
    } else {
      text = whole;
      for (std::size_t n = 1 + below(3); n > 0; --n) {
        const std::size_t at = below(text.size());
        if (below(2) == 0)
          text[at] = static_cast<char>(below(256));
        else
          text.insert(at, pieces[below(pieces.size())]);
      }
    }
    accepted += refusal(text).empty();
    const std::string word = text.substr(0, below(40));
    refusal("", {"--" + word, "--model." + word, "--data.path=" + word});
  }
  EXPECT_GT(accepted, 20);
  EXPECT_LT(accepted, 3500);
}

TEST(Config, WhatIsPrintedReadsBackAsTheSame) {
  const LoadedConfig loaded = load_config_text(
      "[model]\nshape = 'llama'\nlayers = 6\n[data]\npath = \"a \\\"b\\\" \\\\ "
      "\\u007f\\n\\u00e9\"\n"
      "[optimizer]\nlr = 0.1234567890123456\neps = 1e-300\n[parallelism]\n"
      "layers_per_stage = [1, 2, 3]\nslice_sizes = [100, 156]\n",
      "odd\n\xff name.toml", Words{"--metrics.progress=false", "--debug.seed=4294967295"});
  const std::string text = print_config(loaded);
  EXPECT_EQ(read(text), loaded.values) << text;
  EXPECT_EQ(read(config_text(loaded.values)), loaded.values);
  EXPECT_NE(text.find("# odd\\x0a\\xff name.toml:3\n"), text.npos) << text;
  EXPECT_NE(text.find("# flag --debug.seed\n"), text.npos);
  EXPECT_NE(text.find("# default\n"), text.npos);
  EXPECT_EQ(config_text(loaded.values).find('#'), std::string::npos);

  const Config far = read("", {"--data.path=" + repeat("../", 100) + "{a}"});
  EXPECT_EQ(read(config_text(far)), far);
}

TEST(Config, EveryKeyCanBeSetPrintedAndReadBack) {
  const Config defaults;
  std::set<std::string> names;
  for (const ConfigKey& key : config_schema()) {
    EXPECT_TRUE(names.insert(key.full_name()).second) << key.full_name();
    for (const std::string_view alias : key.aliases)
      EXPECT_TRUE(names.insert(std::string(alias)).second) << alias;
    EXPECT_FALSE(key.help.empty()) << key.full_name();
    EXPECT_EQ(key.help.find_first_of("|\n"), key.help.npos) << key.full_name();
    ConfigValue value = key.get(defaults);
    EXPECT_TRUE(accept_value(key, value)) << "default of " << key.full_name();
    if (key.range.most == 0 && key.kind == ValueKind::real) continue;  // only 0 is allowed
    switch (key.kind) {
      case ValueKind::boolean: value = !std::get<bool>(value); break;
      case ValueKind::whole: value = static_cast<std::int64_t>(key.range.most); break;
      case ValueKind::real: value = 0.0625; break;
      case ValueKind::text:
        value = key.choices.empty() ? "some text" : std::string(key.choices.back());
        break;
      case ValueKind::list: value = std::vector<int>{1, 2}; break;
      case ValueKind::layers: value = LayersPerStage{"list", {1, 2}}; break;
    }
    Config changed = defaults;
    key.set(changed, value);
    EXPECT_NE(changed, defaults) << key.full_name();
    EXPECT_EQ(read(config_text(changed)), changed) << key.full_name();
    const std::string text =
        key.kind == ValueKind::text ? std::get<std::string>(value) : toml_value(value);
    EXPECT_EQ(read("", {"--" + key.full_name() + "=" + text}), changed) << key.full_name();
  }
}

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
      {{"--model.positions=255"}, "training.sequence_length is 256: longer than model.positions"},
      {{"--data.format=text", "--model.vocab_size=256"},
       "model.vocab_size is 256: data.format text"},
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
      {{"--parallelism.tensor_parallel_degree=8", "--model.vocab_size=264"},
       "model.heads is 4: does not divide among parallelism.tensor_parallel_degree 8"},
      {{"--parallelism.tensor_parallel_degree=2"},
       "model.vocab_size is 257: does not divide among parallelism.tensor_parallel_degree 2"},
      {{"--parallelism.tensor_parallel_degree=2", "--model.vocab_size=258", "--model.ffn_dim=99"},
       "model.ffn_dim is 99: does not divide among parallelism.tensor_parallel_degree 2"},
      {{"--parallelism.tensor_parallel_degree=2", "--model.vocab_size=258", "--model.shape=llama",
        "--model.heads=6", "--model.kv_heads=3", "--model.dim=96"},
       "model.kv_heads is 3: neither a multiple nor a divisor"},
      {{"--parallelism.partition_costs=a.json"}, "parallelism.partition_costs is 'a.json': only"},
      {{"--parallelism.device_memory_mib=9"}, "parallelism.device_memory_mib is 9: only"},
      {{"--lr_scheduler.warmup_steps=1001"}, "lr_scheduler.warmup_steps is 1001: more than"},
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
      {{"--parallelism.memory_cap=4"}, "parallelism.memory_cap is 4: 1f1b takes no cap"},
      {{"--parallelism.pipeline_parallel_schedule=zb"}, "parallelism.memory_cap is 0: zb needs"},
      {{"--parallelism.pipeline_parallel_schedule=v-hafl"},
       "parallelism.pipeline_parallel_schedule: no schedule is named 'v-hafl': did you mean "
       "'v-half'"},
      {{"--parallelism.pipeline_parallel_schedule=block"},
       "parallelism.pipeline_parallel_schedule is block"},
      {{"--parallelism.pipeline_parallel_schedule=v-half", "--parallelism.stages_per_device=3",
        "--model.layers=6"},
       "parallelism.stages_per_device is 3: v-half always has 2"},
      {{"--generate.prompt=a", "--checkpoint.folder="}, "generate.prompt is set and checkpoint"},
      {{"--generate.prompt=a", "--model.vocab_size=300"}, "generate.prompt is set and model.vocab"},
      {{"--parallelism.pipeline_parallel_schedule_csv=a.csv", "--parallelism.memory_cap=4"},
       "parallelism.memory_cap is 4: the CSV's order is fixed"},
      {{"--parallelism.pipeline_parallel_schedule_csv=a.csv", "--parallelism.stages_per_device=2"},
       "parallelism.stages_per_device is 2: the CSV says it"},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> found = validate_config(read("", c.flags));
    ASSERT_EQ(found.size(), 1u) << c.starts << "\n" << joined(found);
    EXPECT_TRUE(found[0].starts_with(c.starts)) << found[0];
  }
}

TEST(Config, AllProblemsAreSaidAtOnce) {
  EXPECT_EQ(validate_config(read("", {"--model.heads=3", "--lr_scheduler.warmup_steps=2000",
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
  EXPECT_TRUE(gpt.parallelism.slice_sizes.empty());
  EXPECT_EQ(resolve_config(gpt), gpt);

  const Config llama =
      resolve_config(read("", {"--model.shape=llama", "--model.dim=4096", "--parallelism.slices=3",
                               "--parallelism.pipeline_parallel_schedule=seq1f1b"}));
  EXPECT_EQ(llama.model.ffn_dim, 11008);  // of Llama 2 7B
  EXPECT_EQ(llama.parallelism.slice_sizes, (std::vector<int>{86, 85, 85}));
  EXPECT_EQ(resolve_config(read("", {"--parallelism.slice_sizes=100,156"})).parallelism.slices, 2);
}

TEST(Config, TheQuickstartIsReadAndFits) {
  const LoadedConfig quickstart =
      load_config(SLUICE_SOURCE_DIR "/examples/quickstart.toml", Words{"--data.path=corpus.txt"});
  EXPECT_EQ(joined(validate_config(quickstart.values)), "");
  EXPECT_EQ(quickstart.values.parallelism.pipeline_parallel_schedule, "v-half");
  EXPECT_EQ(read(print_config(quickstart)), quickstart.values);
}

TEST(Config, TheDocumentationHoldsEveryKey) {
  const std::string text = test::read_text(SLUICE_SOURCE_DIR "/docs/configuration.md");
  const std::string tables = schema_markdown();
  EXPECT_TRUE(text.ends_with(tables)) << "docs/configuration.md must end with:\n" << tables;
}

}  // namespace
}  // namespace sluice
