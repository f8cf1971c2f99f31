// The configuration: what is read, what is refused and how, printing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>

#include "sluice/base/error.h"
#include "sluice/config/config.h"
#include "sluice/config/schema.h"
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

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += text;
  return out;
}

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
      "device_memory_mib = [100, 20.5]\n"
      "[data]\npath = \"a b\\nc\\u00e9\"\n");
  const Config flags =
      read("", {"--model.tied_embeddings", "--optimizer.lr=1", "--optimizer.name", "AdamW",
                "--training.dtype=bf16", "--parallelism.slice_sizes", "[3, 5]",
                "--parallelism.layers_per_stage=0,8", "--parallelism.device_memory_mib=100,20.5",
                "--data.path=a b\nc\u00e9"});
  EXPECT_EQ(file, flags);
  EXPECT_TRUE(file.model.tied_embeddings);
  EXPECT_EQ(file.optimizer.lr, 1.0);
  EXPECT_EQ(file.optimizer.name, OptimizerKind::adamw);
  EXPECT_EQ(file.training.dtype, NumberType::bfloat16);
  EXPECT_EQ(file.parallelism.slice_sizes, (SliceSizes{SliceRule::list, {3, 5}}));
  EXPECT_EQ(file.parallelism.layers_per_stage, (LayersPerStage{LayerRule::list, {0, 8}}));
  EXPECT_EQ(file.parallelism.device_memory_mib, (std::vector<double>{100, 20.5}));
  EXPECT_EQ(file.data.path, "a b\nc\u00e9");
  EXPECT_EQ(read("[parallelism]\nlayers_per_stage = 'auto'\n").parallelism.layers_per_stage.rule,
            LayerRule::automatic);
  EXPECT_EQ(read("", {"--parallelism.slice_sizes=balanced"}).parallelism.slice_sizes.rule,
            SliceRule::balanced);
  EXPECT_EQ(read("", {"--parallelism.device_memory_mib=9"}).parallelism.device_memory_mib,
            std::vector<double>{9});
  // No slices, as it was written before there were rules.
  EXPECT_EQ(read("[parallelism]\nslice_sizes = []\n").parallelism.slice_sizes, SliceSizes{});
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
    config.optimizer.rounding = Rounding::stochastic;
    EXPECT_TRUE(validate_config(config).empty()) << flags[0];
  }
}

TEST(Config, TheOldNameOfCostsIsUnderstood) {
  EXPECT_EQ(read("[parallelism]\npartition_costs = 'a.json'\n").parallelism.costs, "a.json");
}

TEST(Config, TorchtitansNamesAreUnderstood) {
  const Config config = read(
      "[training]\nseq_len = 99\nseed = 3\n[activation_checkpoint]\nmode = 'full'\n"
      "[lr_scheduler]\nmin_lr_factor = 0.5\n",
      {"--validation.freq=5"});
  EXPECT_EQ(config.training.sequence_length, 99);
  EXPECT_EQ(config.debug.seed, 3);
  EXPECT_EQ(config.recompute.level, RecomputeLevel::full);
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
                                        "[parallelism]\nslice_sizes = 'fair'",
                                        "[parallelism]\ndevice_memory_mib = 'much'",
                                        "[parallelism]\ndevice_memory_mib = -1",
                                        "[parallelism]\ndevice_memory_mib = [1, nan]",
                                        "[parallelism]\ndevice_memory_mib = [1, true]",
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
        "--parallelism.layers_per_stage=", "--parallelism.layers_per_stage=list",
        "--parallelism.slice_sizes=list", "--parallelism.device_memory_mib=1,,2",
        "--parallelism.device_memory_mib=inf"})
    EXPECT_TRUE(refusal("", {flag}).starts_with("--")) << flag << "\n" << refusal("", {flag});
}

TEST(Config, AKeyGivenTwiceInAFileIsRefusedAndOfFlagsTheLastWins) {
  EXPECT_EQ(refusal("[training]\nseq_len = 8\nsequence_length = 8\n"),
            "a.toml:3:19: training.sequence_length is given twice, first as a.toml:2:11: "
            "training.seq_len; remove one of them");
  const std::vector<std::string> flags = {"--debug.seed=1", "--debug.seed", "2",
                                          "--training.seed=3"};
  const LoadedConfig loaded = load_config_text("", "a.toml", flags);
  EXPECT_EQ(loaded.values.debug.seed, 3);
  EXPECT_EQ(loaded.origins.at("debug.seed"), "flag --training.seed");
  EXPECT_EQ(refusal("", {"--debug.seed=x", "--debug.seed=2"}).substr(0, 18), "--debug.seed is 'x");
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
      case ValueKind::numbers: value = std::vector<double>{1, 2.5}; break;
      case ValueKind::rule: value = RuleText{"", {1, 2}}; break;
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

TEST(Config, TheDocumentationHoldsEveryKey) {
  const std::string text = test::read_text(SLUICE_SOURCE_DIR "/docs/configuration.md");
  const std::string tables = schema_markdown();
  EXPECT_TRUE(text.ends_with(tables)) << "docs/configuration.md must end with:\n" << tables;
}

}  // namespace
}  // namespace sluice
