// sluice train over processes, as users meet it: the real program under the real mpirun. Nearly
// every message is a rendezvous one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/run_sluice.h"
#include "support/small_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;
using test::run_shell;
using test::TemporaryFolder;

constexpr const char* kConfig = R"(
[model]
layers = 4
dim = 32
heads = 2
tied_embeddings = true
[data]
path = "corpus.txt"
format = "text"
validation_fraction = 0.1
[training]
steps = 12
sequence_length = 32
global_batch_size = 8
[optimizer]
lr = 5e-3
[lr_scheduler]
warmup_steps = 3
min_lr_ratio = 1.0
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "v-half"
num_microbatches = 4
[checkpoint]
folder = "checkpoints"
interval = 4
keep_latest_k = 0
[validation]
interval = 6
[metrics]
folder = "metrics"
)";

std::string mpirun(int num_ranks, const std::string& flags = "--bind-to none") {
  return fmt::format(
      "timeout -k 5 100 sh -c 'echo $$ >pid.mpirun; exec \"$@\"' sh {} -n {} --oversubscribe "
      "--allow-run-as-root {} "
      "--mca btl_vader_eager_limit 64 --mca btl_tcp_eager_limit 64",
      SLUICE_MPIRUN, num_ranks, flags);
}

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    ++found;
  return found;
}

class TrainOverMpi : public testing::Test {
 protected:
  TrainOverMpi() {
    folder_.write("corpus.txt", test::small_corpus());
    folder_.write("run.toml", kConfig);
    // Leaves its process id, and does what a test wants of one rank only.
    folder_.write("rank", fmt::format("echo $$ >pid.$OMPI_COMM_WORLD_RANK\n"
                                      "[ ! -e rank.$OMPI_COMM_WORLD_RANK ] || "
                                      ". ./rank.$OMPI_COMM_WORLD_RANK\n"
                                      "exec '{}' train run.toml \"$@\"\n",
                                      SLUICE_ENGINE_BINARY));
  }

  Ran shell(const std::string& command) const { return run_shell(command, folder_.path()); }

  Ran threads(const std::string& flags = "") const {
    return shell(fmt::format("'{}' train run.toml {}", SLUICE_ENGINE_BINARY, flags));
  }

  Ran mpi(const std::string& flags = "", int num_ranks = 2) const {
    return shell(fmt::format("{} sh rank {}", mpirun(num_ranks), flags));
  }

  // Trains over processes, and once a checkpoint is there runs `command`; process ids are in
  // pid.RANK and pid.mpirun. The exit code is mpirun's.
  Ran interrupted(const std::string& command) const {
    return shell(
        fmt::format("{} sh rank --training.steps=100000 & job=$!; n=0\n"
                    "while [ ! -e checkpoints/LATEST ] && [ $n -lt 1500 ]; do sleep 0.02; "
                    "n=$((n+1)); done\n{}\nwait $job",
                    mpirun(2), command));
  }

  // Every row without times, memory and the run's id: equal text is equal bits.
  std::map<int, std::string> rows() const {
    std::map<int, std::string> out;
    const std::string text = test::read_text(path("metrics/metrics.jsonl"));
    for (const std::string_view line : split(text, '\n'))
      if (!line.empty()) {
        Json row = Json::parse(line);
        for (const char* own :
             {"run", "time", "step_time_s", "tps", "tflops", "bubble", "memory_bytes"})
          row.erase(own);
        out[row["step"]] = row.dump();
      }
    return out;
  }

  std::string shard(int step, int rank) const {
    return test::read_text(
        path(fmt::format("checkpoints/step-{:08}/rank-{:05}.safetensors", step, rank)));
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  void clear() const {
    for (const char* name : {"checkpoints", "metrics"})
      std::filesystem::remove_all(path(name));
  }

  // Four steps from where the interrupted run left off, against an uninterrupted one.
  void expect_resumes() const {
    const std::string latest = test::read_text(path("checkpoints/LATEST"));
    const std::string steps =
        fmt::format("--training.steps={}", std::stoi(latest.substr(latest.find('-') + 1)) + 4);
    const Ran resumed = mpi(steps);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(count(resumed.err, "resumed from step"), 1U) << resumed.err;
    const auto found = rows();
    clear();
    EXPECT_EQ(threads(steps).code, 0);
    EXPECT_EQ(found, rows());
  }

  TemporaryFolder folder_;
};

TEST_F(TrainOverMpi, GivesTheBitsOfThreadsAndPrintsOnce) {
  for (const char* flags : {"",
                            "--parallelism.pipeline_parallel_schedule=seq1f1b "
                            "--parallelism.slices=4 --training.steps=4"}) {
    SCOPED_TRACE(flags);
    clear();
    ASSERT_EQ(threads(flags).code, 0);
    const auto expected = rows();
    const int last = expected.rbegin()->first;
    const std::string shards[] = {shard(last, 0), shard(last, 1)};
    clear();
    const Ran ran = mpi(fmt::format("{} --trace trace.json", flags));
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(rows(), expected);
    for (const int rank : {0, 1})
      EXPECT_TRUE(shard(last, rank) == shards[rank]) << rank;
    EXPECT_EQ(count(ran.out, "step: "), expected.size()) << ran.out;
    EXPECT_EQ(count(ran.err, "= 2 ranks (mpi), 1 thread each"), 1U) << ran.err;
    EXPECT_EQ(count(ran.err, "saved step"), expected.size() / 4) << ran.err;
  }
  // Two ranks, one stage each, four microbatches of four slices, F and B.
  const Json trace = Json::parse(test::read_text(path("trace.json")));
  std::map<std::string, int> spans;  // by track, measured and predicted
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["cat"] == "compute")
      ++spans[fmt::format("{} {}", event["pid"].dump(), event["tid"].dump())];
  for (const auto& [track, number] : spans)
    EXPECT_EQ(number, 4 * 4 * 2) << track;
  EXPECT_EQ(spans.size(), 4U);
}

// Steps overlap: what is under way between processes goes from one to the next.
TEST_F(TrainOverMpi, OverlappingStepsGiveTheBitsOfThreadsAndResume) {
  for (const char* way : {"--asynchronous.order=A",
                          "--asynchronous.order=R "
                          "--asynchronous.weights=stash --validation.interval=3"}) {
    SCOPED_TRACE(way);
    const std::string flags = fmt::format(
        "--parallelism.pipeline_parallel_degree=4 --parallelism.pipeline_parallel_schedule=amdp "
        "--training.global_batch_size=8 --parallelism.num_microbatches=4 "
        "--lr_scheduler.min_lr_ratio=1 {} ",
        way);
    clear();
    ASSERT_EQ(threads(flags + "--training.steps=8").code, 0);
    const auto expected = rows();
    clear();
    Ran ran = mpi(flags + "--training.steps=5", 4);
    ASSERT_EQ(ran.code, 0) << ran.err;
    ran = mpi(flags + "--training.steps=8", 4);
    ASSERT_EQ(ran.code, 0) << ran.err;
    std::map<int, std::string> found = rows(), wanted = expected;
    found.erase(5);  // the shorter run validates at its end
    wanted.erase(5);
    EXPECT_EQ(found, wanted);
  }
}

// On two devices, with data and tensor ranks, in bf16: the weights of all ranks, saved at the end.
TEST_F(TrainOverMpi, OverlappingStepsOnAMeshAndOtherOptimizersGiveTheBitsOfThreads) {
  const std::string amdp =
      "--parallelism.pipeline_parallel_schedule=amdp --parallelism.num_microbatches=2 "
      "--training.dtype=bfloat16 ";
  const struct {
    std::string flags;
    int ranks;
  } rows_of[] = {
      {amdp + "--parallelism.data_parallel_shard_degree=2", 4},
      {amdp + "--parallelism.tensor_parallel_degree=2 --model.vocab_size=258", 4},
      {"--optimizer.name=muon --parallelism.pipeline_parallel_degree=1 "
       "--parallelism.pipeline_parallel_schedule=1f1b --parallelism.data_parallel_shard_degree=2",
       2},
      {"--optimizer.name=muon --parallelism.pipeline_parallel_degree=1 "
       "--parallelism.pipeline_parallel_schedule=1f1b --parallelism.tensor_parallel_degree=2 "
       "--model.vocab_size=258",
       2},
      {"--optimizer.name=nadam --parallelism.pipeline_parallel_schedule=xpipe", 2},
  };
  for (const auto& [flags, ranks] : rows_of) {
    SCOPED_TRACE(flags);
    const std::string all = flags + " --training.steps=4 --validation.interval=0";
    const auto saved = [&, ranks = ranks] {
      std::string out;
      for (int rank = 0; rank < ranks; ++rank)
        out += shard(4, rank);
      return out;
    };
    clear();
    const Ran expected = threads(all);
    ASSERT_EQ(expected.code, 0) << expected.err;
    const std::string shards = saved();
    const auto metrics = rows();
    EXPECT_EQ(metrics.size(), 4U);
    clear();
    const Ran ran = mpi(all, ranks);
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(rows(), metrics);
    EXPECT_TRUE(saved() == shards);
  }
}

// Rank 0 plans; every process trains by its plan.
TEST_F(TrainOverMpi, PlansBatchesAsThreadsDo) {
  std::string corpus;
  for (int n = 0; n < 60; ++n)
    corpus += fmt::format("{{\"text\": \"{}\"}}\n",
                          std::string(static_cast<std::size_t>(1 + n * 37 % 31), "abcde"[n % 5]));
  folder_.write("corpus.jsonl", corpus);
  folder_.write("costs.json", R"({"schema": 1,
    "stages": [{"F": [1e-3], "I": [1e-3], "W": [1e-3], "layers": 4}],
    "flexsp": {"a1": 1e-6, "a2": 1e-5, "b1": 1e-4, "stash_bytes_per_token": 100,
      "state_bytes": 1000, "all_to_all_bytes_per_token": 2048, "bytes_per_s": {"2": 1e9},
      "heads": 2}})");
  const std::string flags =
      "--data.path=corpus.jsonl --data.format=jsonl --data.packing=sequences "
      "--parallelism.data_parallel_shard_degree=2 --parallelism.pipeline_parallel_schedule=1f1b "
      "--parallelism.costs=costs.json --flexsp.enabled --training.steps=4 ";
  const auto trained = [&] {
    std::string out = test::read_text(path("metrics/plans.jsonl"));
    for (int rank = 0; rank < 4; ++rank)
      out += shard(4, rank);
    return out;
  };
  ASSERT_EQ(threads(flags).code, 0);
  const std::string expected = trained();
  EXPECT_NE(expected.find("\"degree\":2"), std::string::npos);
  clear();
  const Ran ran = mpi(flags, 4);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(trained() == expected);

  // Only rank 0 knows what is wrong, and says it once.
  clear();
  const Ran refused =
      mpi(flags + "--flexsp.strategy=fixed:1 --parallelism.device_memory_mib=0.85", 4);
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_EQ(count(refused.err, "the training data has a sequence of "), 1U) << refused.err;
}

TEST_F(TrainOverMpi, EveryScheduleGivesTheSameBitsOnThreadsAndProcesses) {
  std::map<std::string, std::map<std::string, int>> hashes;  // by slices: which, and how often
  for (const int num_ranks : {1, 2, 4}) {
    const Ran threads = shell(fmt::format("{} threads {}", SLUICE_SCHEDULES_PROGRAM, num_ranks));
    const Ran mpi =
        shell(fmt::format("{} {} mpi {}", mpirun(num_ranks), SLUICE_SCHEDULES_PROGRAM, num_ranks));
    ASSERT_EQ(threads.code, 0) << threads.err;
    ASSERT_EQ(mpi.code, 0) << mpi.err;
    EXPECT_EQ(mpi.out, threads.out) << num_ranks;
    EXPECT_TRUE(threads.out.starts_with("shared-sequences ")) << threads.out;
    for (const std::string_view line : split(threads.out, '\n')) {
      const auto words = split(line, ' ');
      if (words[0] == "shared-sequences") {
        ASSERT_EQ(words.size(), 3U) << line;  // with a hash, also of sharded weights
        EXPECT_EQ(words[2].size(), 64U) << line;
      }
      if (words.size() != 4) continue;
      // Their copies of a stage add up gradients apart.
      const bool to_rounding =
          words[0] == "looped-bfs" || words[0] == "dualpipe" || words[0] == "amdp";
      if (!to_rounding) ++hashes[std::string(words[1])][std::string(words[3])];
    }
  }
  ASSERT_EQ(hashes["1"].size(), 1U);
  ASSERT_EQ(hashes["4"].size(), 1U);
  EXPECT_GE(hashes["1"].begin()->second, 60);
  EXPECT_GE(hashes["4"].begin()->second, 18);
}

TEST_F(TrainOverMpi, DataRanksAndDeferredValidationGiveTheBitsOfThreads) {
  const std::string mesh =
      "--parallelism.num_microbatches=2 --parallelism.data_parallel_shard_degree=2 "
      "--training.max_norm=0.3 --checkpoint.folder=";
  const std::string deferred = mesh + " --parallelism.deferred_validation=true";
  ASSERT_EQ(threads(mesh).code, 0);
  const auto expected = rows();
  ASSERT_EQ(expected.size(), 12U);
  for (const std::string& flags : {mesh, deferred}) {
    SCOPED_TRACE(flags);
    clear();
    const Ran ran = mpi(flags, 4);
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(rows(), expected);
  }
  clear();
  ASSERT_EQ(threads(deferred).code, 0);
  EXPECT_EQ(rows(), expected);
}

TEST_F(TrainOverMpi, ShardedParametersGiveTheBitsOfThreadsAndResume) {
  const std::string mesh =
      "--parallelism.num_microbatches=2 --parallelism.data_parallel_shard_degree=2 "
      "--parallelism.sharding=parameters --validation.interval=4";
  ASSERT_EQ(threads(mesh).code, 0);
  const auto expected = rows();
  ASSERT_EQ(expected.size(), 12U);
  std::vector<std::string> shards;
  for (int rank = 0; rank < 4; ++rank)
    shards.push_back(shard(12, rank));
  clear();
  ASSERT_EQ(mpi(mesh + " --training.steps=8", 4).code, 0);
  const Ran ran = mpi(mesh, 4);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(count(ran.err, "resumed from step 8"), 1U) << ran.err;
  EXPECT_EQ(rows(), expected);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(shard(12, rank) == shards[static_cast<std::size_t>(rank)]) << rank;
}

TEST_F(TrainOverMpi, AMistakeOfAllIsToldOnce) {
  const auto expect = [&](const Ran& ran, int code, const std::string& word) {
    SCOPED_TRACE(word);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(count(ran.err, "sluice: "), 1U) << ran.err;
    EXPECT_NE(ran.err.find(word), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  };
  expect(mpi("", 3), 2, "with 3 processes, and the mesh (data x pipeline x tensor) has 2 ranks");
  expect(mpi("--model.layrs=4"), 2, "model.layers");
  expect(mpi("--data.path=nowhere.txt"), 2, "nowhere.txt");
  expect(mpi("--comm.backend=threads"), 2, "comm.backend is threads and 2 processes were started");
  expect(shell(fmt::format("'{}' train run.toml --comm.backend=mpi", SLUICE_ENGINE_BINARY)), 2,
         "mpirun -n 2");
  EXPECT_FALSE(std::filesystem::exists(path("metrics")));
  const Ran dry = mpi("--dry-run");
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(count(dry.out, "stash"), 1U) << dry.out;
}

TEST_F(TrainOverMpi, ARankWithOtherSettingsIsRefusedByKeyAndRank) {
  std::string other = test::read_text(path("corpus.txt"));
  other[100] = 'X';
  folder_.write("other.txt", other);
  folder_.write("copy.txt", test::read_text(path("corpus.txt")));
  for (const char* name : {"v-half", "zb-v"})
    ASSERT_EQ(shell(fmt::format("'{}' schedule {} --devices 2 --microbatches 4 --format csv "
                                "--out {}.csv && cp {}.csv {}-copy.csv",
                                SLUICE_BINARY, name, name, name, name))
                  .code,
              0);
  const std::string csv = "--parallelism.pipeline_parallel_schedule_csv=v-half.csv ";
  const auto with_rank_1 = [&](const std::string& its, const std::string& all) {
    folder_.write("rank.1", its);
    return mpi(all);
  };
  const auto expect = [&](const std::string& its, const std::string& said,
                          const std::string& all = "") {
    SCOPED_TRACE(its);
    const Ran ran = with_rank_1(its, all);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_EQ(count(ran.err, "sluice: "), 1U) << ran.err;
    EXPECT_EQ(count(ran.err, said), 1U) << ran.err;
  };
  expect("set -- --optimizer.lr=0.01",
         "different settings: optimizer.lr is 0.005 on rank 0 and 0.01 on rank 1; start all");
  expect("set -- --data.path=other.txt", "different settings: the data is ");
  expect("set -- --parallelism.pipeline_parallel_schedule=zb-v",
         "parallelism.pipeline_parallel_schedule is \"v-half\" on rank 0 and \"zb-v\" on rank 1");
  expect("set -- --model.vocab_size=258 --parallelism.tensor_parallel_degree=2",
         "parallelism.tensor_parallel_degree is 1 on rank 0 and 2 on rank 1");
  expect("set -- --parallelism.pipeline_parallel_schedule_csv=zb-v.csv",
         "different settings: the schedule's digest is ", csv);
  expect("export OMP_NUM_THREADS=2", "OMP_NUM_THREADS is not set on rank 0 and 2 on rank 1");
  EXPECT_FALSE(std::filesystem::exists(path("metrics")));
  // What is the same at another place is the same.
  const Ran same = with_rank_1(
      "set -- --data.path=copy.txt --parallelism.pipeline_parallel_schedule_csv=v-half-copy.csv "
      "--metrics.folder=elsewhere",
      csv);
  EXPECT_EQ(same.code, 0) << same.err;
}

TEST_F(TrainOverMpi, AnErrorOfOneRankEndsAllWithItsCode) {
  // Before the ranks have met.
  folder_.write("rank.1", "set -- --data.path=gone.txt");
  const Ran gone = mpi();
  EXPECT_EQ(gone.code, 2) << gone.err;
  EXPECT_EQ(count(gone.err, "sluice: data.path is 'gone.txt'"), 1U) << gone.err;
  // In the middle: no file may grow beyond 8 KiB, so the first shard of rank 1 cannot be written.
  folder_.write("rank.1", "trap '' XFSZ; ulimit -f 16");
  const Ran full = mpi();
  EXPECT_EQ(full.code, 75) << full.err;
  EXPECT_EQ(count(full.err, "rank-00001.safetensors"), 1U) << full.err;
  EXPECT_FALSE(std::filesystem::exists(path("checkpoints/LATEST")));
}

TEST_F(TrainOverMpi, AKilledRankIsNamedAndTheRunResumesWithTheSameBits) {
  const Ran ran = interrupted("kill -KILL $(cat pid.1)");
  EXPECT_NE(ran.code, 0);
  EXPECT_EQ(count(ran.err, "rank 1 failed: no sign of life for"), 1U) << ran.err;
  expect_resumes();
}

TEST_F(TrainOverMpi, AStoppedRankIsNamedAndTheRunResumesWithTheSameBits) {
  const Ran ran = interrupted("kill -STOP $(cat pid.0)");
  EXPECT_EQ(ran.code, 75);
  EXPECT_EQ(count(ran.err, "rank 0 failed: no sign of life for"), 1U) << ran.err;
  expect_resumes();
}

TEST_F(TrainOverMpi, ASignalToAnyRankOrToMpirunSavesOnAllAndExitsWith143) {
  // A stopped process has both signals waiting when it goes on.
  for (const char* command :
       {"r=$(cat pid.1); kill -STOP $r; kill -TERM $r; kill -HUP $r; kill -CONT $r",
        "kill -USR1 $(cat pid.mpirun)"}) {
    SCOPED_TRACE(command);
    clear();
    const Ran ran = interrupted(command);
    EXPECT_EQ(ran.code, 143) << ran.err;
    EXPECT_EQ(count(ran.err, "sluice: rank"), 0U) << ran.err;  // no error
    EXPECT_EQ(count(ran.err, "the same command resumes"), 1U) << ran.err;
    expect_resumes();
  }
}

// mpirun ends its ranks a second later, ready or not, and exits with a code of its own.
TEST_F(TrainOverMpi, ATermSignalToMpirunLosesNothingThatWasSaved) {
  const Ran ran = interrupted("kill -TERM $(cat pid.mpirun)");
  EXPECT_NE(ran.code, 0) << ran.err;
  expect_resumes();
}

}  // namespace
}  // namespace sluice
