// sluice train --dry-run and sluice partition as users meet them: what they say, what they refuse,
// that they write nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "support/golden.h"
#include "support/run_sluice.h"
#include "support/small_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

class DryRun : public testing::Test {
 protected:
  DryRun() {
    folder_.write("corpus.txt", test::small_corpus());
    folder_.write("run.toml", test::small_run(2));
  }

  // What needs no torch is answered by the small program, which starts at once.
  Ran run(const std::string& words, const std::string& environment = "") const {
    const bool dry = words.find("--dry-run") != std::string::npos;
    const bool trains = words.starts_with("train") && !dry;
    const bool engine = trains || words.starts_with("profile");
    return test::run_shell(fmt::format("{} taskset -c 0 '{}' {}", environment,
                                       engine ? SLUICE_ENGINE_BINARY : SLUICE_BINARY, words),
                           folder_.path());
  }
  Ran train(const std::string& flags) const { return run("train run.toml " + flags); }
  Json memory(const std::string& flags = "") const {
    const Ran ran = train("--dry-run --format json " + flags);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return Json::parse(ran.out);
  }
  std::set<std::string> files() const {
    std::set<std::string> out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path()))
      out.insert(entry.path().string());
    return out;
  }
  // One line on standard error, nothing on standard output.
  void expect_refused(const std::string& flags, int code, const std::string& word) const {
    SCOPED_TRACE(flags);
    const Ran ran = train(flags);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(word), std::string::npos) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "");
  }

  test::TemporaryFolder folder_;
};

TEST_F(DryRun, AddsUpTheClassesOfEveryRankAndWritesNothing) {
  const auto before = files();
  const Json json = memory();
  EXPECT_EQ(json["schedule"], "zb-v");
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][0]["rank"], 0);
  EXPECT_EQ(json["ranks"][0]["stages"], (std::vector<int>{0, 3}));
  EXPECT_EQ(json["ranks"][0]["layers"], (std::vector<int>{2, 2}));
  const char* const classes[] = {"weights", "gradients", "optimizer",
                                 "stash",   "buffers",   "workspace"};
  std::int64_t all = 0;
  for (const Json& rank : json["ranks"]) {
    std::int64_t sum = 0;
    for (const char* name : classes) {
      ASSERT_TRUE(rank[name].is_number_integer()) << name;
      EXPECT_GT(rank[name].get<std::int64_t>(), 0) << name;
      sum += rank[name].get<std::int64_t>();
    }
    EXPECT_EQ(rank["total"], sum);
    all += sum;
  }
  EXPECT_EQ(json["totals"]["total"], all);
  EXPECT_EQ(json["fits"], true);
  EXPECT_TRUE(json["remarks"].empty());
  const Ran text = train("--dry-run");
  EXPECT_EQ(text.code, 0) << text.err;
  const double mebibytes = static_cast<double>(all) / (1 << 20);
  EXPECT_NE(text.out.find(fmt::format("{:.2f}\n", mebibytes)), std::string::npos) << text.out;
  EXPECT_EQ(files(), before);
}

TEST_F(DryRun, CountsWeightsGradientsAndStatesInTheirOwnTypes) {
  const std::string flags = "--parallelism.deferred_validation ";
  const Json wide = memory(flags)["totals"];
  const std::int64_t elements = wide["weights"].get<std::int64_t>() / 4;
  struct Row {
    std::string flags;
    std::int64_t weights, gradients, optimizer, rollback;  // bytes per element
  };
  for (const Row& row :
       {Row{"", 4, 4, 8, 12}, Row{"--optimizer.state_dtype=bf16", 4, 4, 4, 8},
        Row{"--training.dtype=bf16", 2, 4, 12, 12},
        Row{"--training.dtype=bf16 --training.gradient_dtype=bf16", 2, 2, 12, 12},
        Row{"--training.dtype=bf16 --optimizer.master_weights=false", 2, 4, 8, 10},
        Row{"--training.dtype=bf16 --optimizer.state_dtype=bf16", 2, 4, 8, 8},
        Row{"--training.dtype=bf16 --training.gradient_dtype=bf16 --optimizer.state_dtype=bf16 "
            "--optimizer.master_weights=false --optimizer.rounding=stochastic",
            2, 2, 4, 6}}) {
    SCOPED_TRACE(row.flags);
    const Json totals = memory(flags + row.flags)["totals"];
    EXPECT_EQ(totals["weights"], elements * row.weights);
    EXPECT_EQ(totals["gradients"], elements * row.gradients);
    EXPECT_EQ(totals["optimizer"], elements * row.optimizer);
    EXPECT_EQ(totals["rollback"], elements * row.rollback);
  }
}

TEST_F(DryRun, TheStashIsWhatTheRunThenHolds) {
  const Json json = memory();
  ASSERT_EQ(train("--checkpoint.folder=").code, 0);
  const std::string rows = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
  const Json row = Json::parse(rows.substr(0, rows.find('\n')));
  for (std::size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(json["ranks"][rank]["stash"], row["peak_stash_bytes"][rank]);
}

TEST_F(DryRun, SaysWhereASplitBackwardNeedsMoreThanAFusedOne) {
  const auto largest = [](const Json& json) {
    std::int64_t most = 0;
    for (const Json& rank : json["ranks"])
      most = std::max(most, rank["stash"].get<std::int64_t>());
    return static_cast<double>(most) / (1 << 20);
  };
  const Json split = memory("--recompute.level=full");
  const Json fused = memory("--recompute.level=full --parallelism.fuse_backward");
  EXPECT_LT(largest(fused), largest(split));
  ASSERT_EQ(split["remarks"].size(), 1u);
  const std::string remark = split["remarks"][0];
  EXPECT_NE(remark.find(fmt::format("{:.2f} MiB", largest(split))), std::string::npos) << remark;
  EXPECT_NE(remark.find(fmt::format("{:.2f} MiB", largest(fused))), std::string::npos) << remark;
  EXPECT_NE(remark.find("parallelism.fuse_backward"), std::string::npos) << remark;
  EXPECT_TRUE(fused["remarks"].empty());
  // Nothing is computed again, or the backward is whole already.
  EXPECT_TRUE(memory("--recompute.level=none")["remarks"].empty());
  EXPECT_TRUE(
      memory("--recompute.level=full --parallelism.pipeline_parallel_schedule=1f1b")["remarks"]
          .empty());
}

TEST_F(DryRun, FusedRunsKeepToTheirPredictionToo) {
  ASSERT_EQ(train("--recompute.level=full --parallelism.fuse_backward --checkpoint.folder=").code,
            0);
  const std::string rows = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
  const Json row = Json::parse(rows.substr(0, rows.find('\n')));
  EXPECT_EQ(row["peak_stash_bytes"], row["predicted_peak_stash_bytes"]);
}

TEST_F(DryRun, SaysWhatDoesNotFitThisMachine) {
  const Json json = memory("--model.dim=131072");
  EXPECT_EQ(json["fits"], false);
  ASSERT_EQ(json["remarks"].size(), 1u);
  EXPECT_NE(json["remarks"][0].get<std::string>().find("this machine has"), std::string::npos);
}

TEST_F(DryRun, RefusesWhatTheRunWouldRefuse) {
  expect_refused("--format json", 2, "--dry-run");
  expect_refused("--dry-run --format yaml", 2, "yaml");
  expect_refused("--data.path=", 2, "data.path");
  expect_refused("--data.path=nowhere.txt", 2, "nowhere.txt");
  expect_refused("--dry-run --training.sequence_length=20000", 3, "corpus.txt");
  expect_refused("--dry-run --checkpoint.folder=corpus.txt/here", 2, "corpus.txt");
  expect_refused("--dry-run --metrics.folder=corpus.txt", 2, "corpus.txt");
  expect_refused("--dry-run --trace nowhere/step.json", 2, "nowhere");
  expect_refused("--dry-run --checkpoint.load=nowhere", 3, "nowhere");
}

TEST_F(DryRun, LooksAtTheCheckpointThatWouldBeLoaded) {
  ASSERT_EQ(train("").code, 0);
  const auto before = files();
  EXPECT_EQ(train("--dry-run").code, 0);
  EXPECT_EQ(train("--dry-run --parallelism.pipeline_parallel_degree=1").code, 0);
  expect_refused("--dry-run --model.dim=64", 3, "another model");
  for (const char* key : {"training.dtype", "optimizer.state_dtype"})
    EXPECT_EQ(train(fmt::format("--dry-run --{}=bfloat16", key)).code, 0) << key;  // converted
  expect_refused("--dry-run --checkpoint.load=none", 2, "holds step 2");
  const std::string shard = "checkpoints/step-00000002/rank-00001.safetensors";
  std::string bytes = test::read_text(folder_.path() + "/" + shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder_.write(shard, bytes);
  expect_refused("--dry-run", 3, "rank-00001.safetensors");
  EXPECT_EQ(files(), before);
}

TEST_F(DryRun, ACheckpointOfAnotherModelIsNamedByWhatDiffers) {
  const std::string gpt2 = "--metrics.folder= --checkpoint.folder=gpt2 ";
  const std::string llama = "--metrics.folder= --checkpoint.folder=llama --model.shape=llama ";
  ASSERT_EQ(train(gpt2 + "--training.steps=1").code, 0);
  ASSERT_EQ(train(llama + "--training.steps=1").code, 0);
  const auto before = files();
  for (const auto& [run, flags, difference] : {
           std::tuple{gpt2, "--model.layers=4", "model.layers is 8 there and 4 here ("},
           std::tuple{gpt2, "--model.layers=12",
                      "model.layers is 8 there and 12 here (flag --model.layers);"},
           std::tuple{gpt2, "--model.heads=8", "model.heads is 2 there and 8 here ("},
           std::tuple{gpt2, "--model.tied_embeddings",
                      "model.tied_embeddings is false there and true here ("},
           std::tuple{gpt2, "--model.positions=64", "model.positions is 32 there and 64 here ("},
           std::tuple{gpt2, "--model.vocab_size=300", "model.vocab_size is 257 there and 300"},
           std::tuple{gpt2, "--model.shape=llama", "model.shape is \"gpt2\" there and \"llama\" "},
           std::tuple{gpt2, "--model.norm_epsilon=1e-6",
                      "model.norm_epsilon is 1e-05 there and 1e-06 here ("},
           std::tuple{llama, "--model.rope_theta=50000",
                      "model.rope_theta is 10000.0 there and 50000.0 here ("},
           std::tuple{llama, "--model.kv_heads=1", "model.kv_heads is 2 there and 1 here ("},
       }) {
    const std::string more = run + flags;
    expect_refused(more + " --dry-run", 3, difference);
    const Ran ran = train(more);
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_NE(ran.err.find("is of another model: "), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find(difference), std::string::npos) << ran.err;
    EXPECT_TRUE(
        ran.err.ends_with(" out to take the checkpoint's, or name another "
                          "checkpoint.folder\n"))
        << ran.err;
  }
  expect_refused(gpt2 + "--dry-run --model.shape=gpt2 --checkpoint.load=llama", 3,
                 "or name another checkpoint.load\n");
  EXPECT_EQ(files(), before);
  // The same in other words, and what limits no weight.
  EXPECT_EQ(train(gpt2 + "--model.norm_epsilon=1e-5 --model.kv_heads=2").code, 0);
  EXPECT_EQ(train(llama + "--model.positions=64 --training.sequence_length=64").code, 0);
}

TEST_F(DryRun, SaysWhatOfThisMachineWouldStopTheRun) {
  const auto expect_remark = [&](const Json& json, const std::string& begin) {
    const std::vector<std::string> remarks = json["remarks"];
    EXPECT_EQ(std::count_if(remarks.begin(), remarks.end(),
                            [&](const std::string& remark) { return remark.starts_with(begin); }),
              1)
        << json["remarks"];
  };
  expect_remark(memory("--comm.backend=mpi"),
                "train would refuse here: comm.backend is mpi and no launcher");
  // Of a GPU nothing is asked: a plan may be of another machine.
  const Ran ran =
      run("train run.toml --dry-run --format json --model.dim=131072 --cluster.device=cuda",
          "CUDA_VISIBLE_DEVICES=");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json planned = Json::parse(ran.out);
  EXPECT_TRUE(planned["remarks"].empty()) << planned["remarks"];
  EXPECT_TRUE(planned["machine"].is_null());
  EXPECT_TRUE(planned["fits"].is_null());
}

TEST_F(DryRun, LayersByAutoLeaveRoomForTheHead) {
  const std::string flags =
      "--model.vocab_size=2000 --parallelism.pipeline_parallel_schedule=1f1b "
      "--parallelism.layers_per_stage=";
  // The head works as much as six layers: 8 x 2000 against 6 x 12 x 32, and attention.
  EXPECT_EQ(memory(flags + "auto")["ranks"][0]["layers"], (std::vector<int>{7}));
  EXPECT_EQ(memory(flags + "auto")["ranks"][1]["layers"], (std::vector<int>{1}));
  // Where a layer is does not change what it computes.
  const auto losses = [&](const std::string& rule) {
    std::filesystem::remove_all(folder_.path() + "/metrics");
    const Ran ran = train(flags + rule + " --checkpoint.folder=");
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::vector<std::string> out;
    std::istringstream rows(test::read_text(folder_.path() + "/metrics/metrics.jsonl"));
    for (std::string line; std::getline(rows, line);)
      out.push_back(Json::parse(line)["loss"].dump());
    return out;
  };
  EXPECT_EQ(losses("auto"), losses("even"));
}

// The command, the training and the dry run see one and the same split, under the same cap.
TEST_F(DryRun, PartitionShowsWhatAutoTrains) {
  const std::string flags =
      " --model.vocab_size=2000 --parallelism.pipeline_parallel_schedule=zb-v";
  const auto partition = [&](const std::string& more) {
    return run("partition run.toml" + flags + " --format json " + more);
  };
  const Json shown = Json::parse(partition("").out);
  EXPECT_EQ(shown["even"]["layers"], (std::vector<int>{2, 2, 2, 2}));
  const auto dry_run = [&](const std::string& more) {
    return memory(flags + " --parallelism.layers_per_stage=auto " + more);
  };
  const auto expect_same = [](const Json& split, const Json& dry) {
    for (std::size_t d = 0; d < 2; ++d) {
      EXPECT_EQ(dry["ranks"][d]["layers"][0], split["layers"][d]);
      EXPECT_EQ(dry["ranks"][d]["layers"][1], split["layers"][3 - d]);
      EXPECT_EQ(dry["ranks"][d]["total"].get<double>(), split["device_bytes"][d].get<double>());
    }
  };
  expect_same(shown["auto"], dry_run(""));
  const std::string mesh =
      " --parallelism.data_parallel_shard_degree=2 --parallelism.deferred_validation";
  for (const std::string& sharding : {mesh, mesh + " --parallelism.sharding=parameters"})
    expect_same(Json::parse(partition(sharding).out)["auto"], dry_run(sharding));
  EXPECT_LT(shown["auto"]["step"].get<double>(), shown["even"]["step"].get<double>());
  // A little less memory than its largest device: another split.
  const std::vector<double> bytes = shown["auto"]["device_bytes"];
  const double cap = *std::max_element(bytes.begin(), bytes.end()) / (1 << 20) - 0.001;
  const Ran capped = partition(fmt::format("--memory-cap-mib {:.4f}", cap));
  if (capped.code == 0) {
    const Json split = Json::parse(capped.out)["auto"];
    EXPECT_NE(split["layers"], shown["auto"]["layers"]);
    expect_same(split, dry_run(fmt::format("--parallelism.device_memory_mib={:.4f}", cap)));
  } else {
    EXPECT_NE(capped.err.find("the least possible is"), std::string::npos);
  }
  const Ran none = partition("--memory-cap-mib 0.5");
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("the least possible is"), std::string::npos) << none.err;
}

TEST_F(DryRun, ShardedParametersTakeLessAndSendMoreThanStates) {
  const std::string mesh =
      " --parallelism.pipeline_parallel_schedule=1f1b --model.layers=16 "
      "--parallelism.data_parallel_shard_degree=4 --parallelism.num_microbatches=2";
  const Json states = memory(mesh), sharded = memory(mesh + " --parallelism.sharding=parameters");
  for (std::size_t d = 0; d < 2; ++d) {
    const Json &one = states["ranks"][d], &other = sharded["ranks"][d];
    EXPECT_FALSE(one.contains("traffic_of_states"));
    EXPECT_EQ(other["traffic_of_states"], one["traffic"]);
    EXPECT_EQ(other["optimizer"], one["optimizer"]);
    for (const char* bytes : {"weights", "gradients", "reduction"})
      EXPECT_LT(other[bytes].get<double>(), 0.75 * one[bytes].get<double>()) << bytes;
    const auto sent = [](const Json& rank, const char* kind) {
      return rank["traffic"][kind].get<double>();
    };
    // Two microbatches: each of them gathers twice and sums once.
    EXPECT_NEAR(sent(other, "parameter") / sent(one, "parameter"), 4, 0.5);
    EXPECT_NEAR(sent(other, "gradient") / sent(one, "gradient"), 2, 0.1);
  }
  const Ran text =
      run("train run.toml --dry-run --checkpoint.folder= --parallelism.sharding=parameters" + mesh);
  EXPECT_NE(text.out.find("gradient  parameter  gradient (states)  parameter (states)"),
            std::string::npos)
      << text.out << text.err;
  EXPECT_EQ(text.out.find("norm (states)"), std::string::npos) << text.out;
  // Gradients that tensor ranks add up are divided, too.
  const Ran norms =
      run("train run.toml --dry-run --checkpoint.folder= --parallelism.sharding=parameters "
          "--parallelism.tensor_parallel_degree=2 --parallelism.sequence_parallel_norms=true "
          "--model.vocab_size=258" +
          mesh);
  EXPECT_NE(norms.out.find("norm  gradient (states)  parameter (states)  norm (states)"),
            std::string::npos)
      << norms.out << norms.err;
}

// A profile says which part takes how long; here the head takes nothing, whatever the formula says.
TEST_F(DryRun, PartitionGoesByAProfile) {
  folder_.write("costs.json", R"({"schema":1,"stages":[
    {"F":[4],"I":[4],"W":[4],"layers":4},{"F":[4],"I":[4],"W":[4],"layers":4}]})");
  const std::string request =
      "partition run.toml --model.vocab_size=2000 --parallelism.pipeline_parallel_schedule=1f1b";
  const Json even = Json::parse(run(request + " --costs costs.json --format json").out);
  EXPECT_EQ(even["auto"]["layers"], (std::vector<int>{4, 4}));
  EXPECT_TRUE(even["measured"].get<bool>());
  EXPECT_EQ(run(request + " --costs costs.json").err,
            "sluice: costs.json: has no measured_on, so it may be of another model\n");
  EXPECT_EQ(Json::parse(run(request + " --format json").out)["auto"]["layers"],
            (std::vector<int>{7, 1}));
  folder_.write("old.json", R"({"schema":1,"stages":[{"F":[4],"B":[4]},{"F":[4],"B":[4]}]})");
  for (const auto& [more, words] :
       {std::pair{"--costs old.json", "no 'layers'"}, std::pair{"--costs nowhere.json", "nowhere"},
        std::pair{"--memory-cap-mib x", "--memory-cap-mib is 'x'"},
        std::pair{"--model.layers=0", "model.layers"}}) {
    const Ran ran = run(request + " " + more);
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_NE(ran.err.find(words), std::string::npos) << ran.err;
  }
}

// A profile says what it was measured on; layers are not dealt by the times of another model.
TEST_F(DryRun, PartitionRefusesAProfileOfAnotherRun) {
  const std::string schedule = "--parallelism.pipeline_parallel_schedule=1f1b";
  ASSERT_EQ(run("profile run.toml --out costs.json " + schedule).code, 0);
  const auto partition = [&](const std::string& flags) {
    return run(fmt::format("partition run.toml --costs costs.json {} {}", schedule, flags));
  };
  const Ran same = partition("--parallelism.pipeline_parallel_schedule=zb-v");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.err, "");
  for (const auto& [flag, words] :
       {std::pair{"--model.layers=16", "model.layers is 16 and was 8 when measured"},
        std::pair{"--model.dim=64", "model.dim is 64 and was 32 when measured"},
        std::pair{"--training.dtype=bfloat16", "training.dtype is bfloat16 and was float32"},
        std::pair{"--recompute.level=full", "recompute.level is full and was none"},
        std::pair{"--training.global_batch_size=16",
                  "the number of sequences in a microbatch is 4 and was 2"}}) {
    const Ran other = partition(flag);
    EXPECT_EQ(other.code, 2) << flag;
    EXPECT_EQ(other.out, "");
    EXPECT_EQ(std::count(other.err.begin(), other.err.end(), '\n'), 1) << other.err;
    EXPECT_TRUE(other.err.starts_with("sluice: parallelism.costs is 'costs.json': "));
    EXPECT_NE(other.err.find(words), std::string::npos) << other.err;
    EXPECT_NE(other.err.find("measure again (sluice profile) or correct the configuration"),
              std::string::npos)
        << other.err;
  }
  // What trains by it refuses it, too.
  const Ran trained = train(
      "--dry-run --model.dim=64 --parallelism.layers_per_stage=auto "
      "--parallelism.costs=costs.json " +
      schedule);
  EXPECT_EQ(trained.code, 2);
  EXPECT_NE(trained.err.find("model.dim is 64 and was 32"), std::string::npos) << trained.err;
}

// heads 2, vocabulary 257, ffn_dim 128, eight layers, a batch of eight in four microbatches.
TEST_F(DryRun, MeshesThatDoNotFitAreRefusedInOneLine) {
  for (const auto& [flags, word] : {
           std::pair{"tensor_parallel_degree=4", "model.heads is 2"},
           std::pair{"tensor_parallel_degree=2", "model.vocab_size is 257"},
           std::pair{"tensor_parallel_degree=2 --model.vocab_size=258 --model.ffn_dim=33",
                     "model.ffn_dim is 33"},
           std::pair{"tensor_parallel_degree=0", "tensor_parallel_degree is '0'"},
           std::pair{"tensor_parallel_degree=1.5", "tensor_parallel_degree is '1.5'"},
           std::pair{"tensor_degree=2", "unknown flag"},
           std::pair{"data_parallel_replicate_degree=3", "global_batch_size is 8"},
           std::pair{"data_parallel_shard_degree=8", "num_microbatches is 4"},
           std::pair{"data_parallel_shard_degree=1048576 "
                     "--parallelism.data_parallel_replicate_degree=1048576",
                     "too large"},
           std::pair{"pipeline_parallel_degree=3", "does not divide by the 6 stages"},
           std::pair{"pipeline_parallel_degree=6 --parallelism.layers_per_stage=auto",
                     "too few for 12 stages"},
           std::pair{"device_memory_mib=1,2,3", "device_memory_mib lists 3 caps"},
           std::pair{"layers_per_stage=cost", "layers_per_stage is 'cost'"},
           std::pair{"pipeline_parallel_schedule=amdp --parallelism.deferred_validation",
                     "amdp updates while the next step runs"},
           std::pair{"deferred_validation=false --asynchronous.order=R",
                     "asynchronous.order is \"R\", and zb-v ends every step before the next"},
       })
    expect_refused(fmt::format("--dry-run --parallelism.{}", flags), 2, word);
}

// What check proves and the trainer cannot run is refused by all that would run it, in one line.
TEST_F(DryRun, SchedulesThatTheTrainerCannotRunAreRefusedByEveryCommandAlike) {
  const auto program = [](int stage) {
    std::string row;
    for (int m = 0; m < 4; ++m)
      row += fmt::format("{0}F{1},{0}B{1},", stage, m);
    return row;
  };
  // Pipe 0 has both stages on device 0, pipe 1 on device 1.
  const auto pipe = [](int number) {
    return fmt::format(
        "0F{1}@{0},1F{1}@{0},1B{1}@{0},0B{1}@{0},0F{2}@{0},1F{2}@{0},1B{2}@{0},0B{2}@{0}\n", number,
        number, number + 2);
  };
  folder_.write("pipes.csv", pipe(0) + pipe(1));
  folder_.write("last.csv",
                program(0) + "0REDUCE_GRAD,0UPDATE\n" + program(1) + "1REDUCE_GRAD,1UPDATE\n");
  ASSERT_EQ(run("schedule async-1f1b --devices 2 --microbatches 4 --windows 2 --out two.csv").code,
            0);
  const auto flags = [](const std::string& file) {
    return " run.toml --parallelism.pipeline_parallel_schedule_csv=" + file;
  };
  for (const auto& [file, line] :
       {std::pair{
            "two.csv",
            "sluice: async-1f1b has 2 windows, of which none repeats: training goes on for any "
            "number of steps, so give it a schedule in which each window is like the one "
            "before, from the second or third on, and a few windows more of it\n"},
        std::pair{"pipes.csv",
                  "sluice: pipes has no stage of pipe 0 on device 1: there each stage is saved and "
                  "its norm counted; let pipe 0 pass through every device\n"}}) {
    EXPECT_EQ(run(std::string("check ") + file).code, 0) << file;
    for (const char* command : {"train", "train --dry-run", "profile", "partition"}) {
      const Ran ran = run(command + flags(file));
      EXPECT_EQ(ran.code, 2) << command << ": " << ran.err;
      EXPECT_EQ(ran.err, line) << command;
      EXPECT_EQ(ran.out, "") << command;
    }
  }
  for (const char* command : {"train", "train --dry-run"}) {
    const Ran ran = run(command + flags("last.csv"));
    EXPECT_EQ(ran.code, 0) << command << ": " << ran.err;
  }
}

// The stages of a schedule are counted once, for a dry run, a run and a CSV.
TEST_F(DryRun, LayersAreDealtToTheStagesThatTheScheduleHas) {
  const std::string dualpipe = "--parallelism.pipeline_parallel_schedule=dualpipe ";
  const std::string layers = "--parallelism.layers_per_stage=";
  ASSERT_EQ(run("schedule dualpipe --devices 2 --microbatches 4 --format csv --out d.csv").code, 0);
  const std::string csv = "--parallelism.pipeline_parallel_schedule_csv=d.csv ";
  for (const std::string& schedule : {dualpipe, csv})
    for (const std::string dry : {"--dry-run ", ""}) {
      expect_refused(dry + schedule + layers + "2,2,2,2", 2,
                     "has 4 numbers, and the schedule has 2 stages");
      expect_refused(dry + schedule + "--model.layers=7", 2, "does not divide by the 2 stages");
      const Ran ran = train(dry + schedule + "--model.layers=6 " + layers + "4,2");
      EXPECT_EQ(ran.code, 0) << ran.err;
      // The next run is of another model.
      std::filesystem::remove_all(folder_.path() + "/checkpoints");
    }
  EXPECT_EQ(memory(dualpipe + "--model.layers=6")["ranks"][0]["layers"], (std::vector<int>{3, 3}));
}

}  // namespace
}  // namespace sluice
