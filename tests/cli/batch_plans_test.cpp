// sluice train with batch plans, as users meet it: it replays them, resumes with the same bits, and
// refuses those that do not fit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "sluice/config/config.h"
#include "sluice/run/batch_plan_file.h"
#include "sluice/runtime/datasets.h"
#include "sluice/runtime/files/sha256.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

constexpr int kBatch = 8;
// 4 data ranks and 2 stages; 4 heads.
constexpr const char* kMesh =
    "--parallelism.data_parallel_shard_degree=4 --parallelism.pipeline_parallel_schedule=1f1b "
    "--parallelism.num_microbatches=0 --flexsp.plan_file=plans.jsonl ";

class TrainBatchPlans : public test::TinyRun {
 protected:
  TrainBatchPlans() {
    std::string lines;
    for (int n = 0; n < 60; ++n)
      lines += fmt::format("{{\"text\": \"{}\"}}\n",
                           std::string(static_cast<std::size_t>(1 + n * 37 % 31), "abcde"[n % 5]));
    folder_.write("corpus.jsonl", lines);
    std::string config = test::kTinyConfig;
    const auto change = [&](const std::string& from, const std::string& to) {
      config.replace(config.find(from), from.size(), to);
    };
    change("path = \"corpus.txt\"\nformat = \"text\"\n",
           "path = \"corpus.jsonl\"\npacking = \"sequences\"\n");
    change("heads = 2", "heads = 4");
    folder_.write("run.toml", config);
  }

  // Two microbatches in odd steps, three in even ones, in groups of 4, 2 and 1.
  PlannedBatch batch(int step) const {
    Config config = load_config(folder_.path() + "/run.toml", {}).values;
    config.data.path = folder_.path() + "/corpus.jsonl";
    const Datasets data = open_datasets(resolve_config(config));
    const std::vector<std::int64_t> lengths =
        data.training.lengths((step - 1) * kBatch, step * kBatch);
    BatchPlan plan{{{{4, 0, {0, 5}}}, {{2, 0, {1, 2}}, {1, 2, {3, 4}}, {1, 3, {6, 7}}}}};
    if (step % 2 == 0)
      plan = {{{{2, 2, {0, 5, 7}}},
               {{2, 0, {1, 2}}, {2, 2, {3, 4}}},
               {
                   {4, 0, {6}},
               }}};
    return {plan, sha256_hex(lengths_text(lengths))};
  }
  std::string plans(int steps) const {
    std::string text;
    for (int step = 1; step <= steps; ++step)
      text += batch_plan_line(step, batch(step)) + "\n";
    return text;
  }
  std::vector<double> losses() const {
    std::vector<double> out;
    const std::string all = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
    for (const std::string_view line : split(all, '\n'))
      if (!line.empty()) out.push_back(Json::parse(line)["loss"].get<double>());
    return out;
  }
  std::string weights() const {
    const Ran ran = sluice("inspect checkpoints --format json");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? Json::parse(ran.out)["weights_sha256"] : "";
  }
  void expect_refused(const std::string& flags, int code, const std::string& part) const {
    SCOPED_TRACE(part);
    const Ran ran = train(flags);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
  }
  void write_changed(const std::function<void(PlannedBatch&)>& change) const {
    PlannedBatch changed = batch(1);
    change(changed);
    folder_.write("plans.jsonl", batch_plan_line(1, changed) + "\n");
  }
};

TEST_F(TrainBatchPlans, AreReplayedWithTheLossesOfARunWithoutThem) {
  folder_.write("plans.jsonl", plans(6));
  const Ran planned = train(kMesh + std::string("--training.steps=6 --trace step.json"));
  ASSERT_EQ(planned.code, 0) << planned.err;
  const std::vector<double> ours = losses();
  clear();
  ASSERT_EQ(train("--training.steps=6").code, 0);
  const std::vector<double> plain = losses();
  ASSERT_EQ(ours.size(), 6U);
  for (std::size_t n = 0; n < plain.size(); ++n)
    EXPECT_NEAR(ours[n], plain[n], 1e-4) << n;
  EXPECT_NEAR(ours[0], plain[0], 1e-6);
}

TEST_F(TrainBatchPlans, AKilledRunResumesWithTheSameBits) {
  constexpr int kMany = 1000;  // no run ends so soon
  folder_.write("plans.jsonl", plans(kMany));
  for (const char* sharding : {"states", "parameters"}) {
    SCOPED_TRACE(sharding);
    clear();
    const std::string flags =
        fmt::format("{} --lr_scheduler.min_lr_ratio=1 --parallelism.sharding={} ", kMesh, sharding);
    const int saved = killed_after_save(flags + fmt::format("--training.steps={}", kMany));
    ASSERT_GT(saved, 0);
    const std::string rest = flags + fmt::format("--training.steps={}", saved + 4);
    const Ran resumed = train(rest);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find(fmt::format("resumed from step {}", saved)), std::string::npos)
        << resumed.err;
    const std::string bits = weights();
    const std::vector<double> found = losses();
    clear();
    ASSERT_EQ(train(rest).code, 0);
    EXPECT_EQ(weights(), bits);
    EXPECT_EQ(losses(), found);
  }
}

TEST_F(TrainBatchPlans, ADryRunChecksThemAndSaysWhatTheFirstBatchesTake) {
  folder_.write("plans.jsonl", plans(3));
  const Ran ran = train(kMesh + std::string("--training.steps=3 --dry-run"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE((ran.out + ran.err).find("the first 3 batches of this data: at most "),
            std::string::npos)
      << ran.out << ran.err;
  // The fourth step has no plan.
  expect_refused(kMesh + std::string("--training.steps=4 --dry-run"), 3,
                 "plans.jsonl: has no plan for step 4; its last one is for step 3");
}

TEST_F(TrainBatchPlans, PlansOfLaterStepsCountForNothing) {
  const std::string flags = kMesh + std::string("--training.steps=3 --dry-run --format=json");
  folder_.write("plans.jsonl", plans(3));
  const Ran ran = train(flags);
  ASSERT_EQ(ran.code, 0) << ran.err;
  PlannedBatch one = batch(4);  // everything in one microbatch on one rank
  one.plan.microbatches = {{{.degree = 1, .first_rank = 0, .sequences = {0, 1, 2, 3, 4, 5, 6, 7}}}};
  folder_.write("plans.jsonl", plans(3) + batch_plan_line(4, one) + "\n");
  EXPECT_EQ(train(flags).out, ran.out);
  EXPECT_NE(train(kMesh + std::string("--training.steps=4 --dry-run --format=json")).out, ran.out);
}

TEST_F(TrainBatchPlans, ADryRunOfAResumeLooksAtTheNextSteps) {
  folder_.write("plans.jsonl", plans(4));
  ASSERT_EQ(train(kMesh + std::string("--training.steps=4")).code, 0);
  // The file holds the steps that are left, and no others.
  folder_.write("plans.jsonl", batch_plan_line(5, batch(5)) + "\n" + batch_plan_line(6, batch(6)));
  const std::string flags = kMesh + std::string("--training.steps=6 ");
  const Ran dry = train(flags + "--dry-run");
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("the next 2 batches of this data: at most "), std::string::npos)
      << dry.out;
  const Ran resumed = train(flags);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed from step 4"), std::string::npos) << resumed.err;
}

TEST_F(TrainBatchPlans, EveryPlanIsCheckedBeforeTheFirstStep) {
  const std::string flags = kMesh + std::string("--training.steps=4 ");
  const auto refused_at_once = [&](const std::string& part) {
    for (const char* dry : {"--dry-run", ""}) {
      expect_refused(flags + dry, 3, part);
      EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/checkpoints"));
      EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/metrics"));
    }
  };
  folder_.write("plans.jsonl", plans(3));
  refused_at_once(
      "plans.jsonl: has no plan for step 4; its last one is for step 3: plan every step up to "
      "training.steps, which is 4, or lower that");
  folder_.write("plans.jsonl", plans(2) + batch_plan_line(4, batch(4)) + "\n");
  refused_at_once(
      "plans.jsonl: has no plan for step 3; its next one is for step 4: plan every step up to "
      "training.steps, which is 4");
  folder_.write("plans.jsonl", batch_plan_line(5, batch(5)) + "\n");
  refused_at_once("plans.jsonl: its first plan is for step 5, and training.steps is 4");
  folder_.write("plans.jsonl", plans(3) + batch_plan_line(4, batch(3)) + "\n");
  refused_at_once("plans.jsonl: the plan for step 4 is of another batch: lengths_sha256 is ");
}

TEST_F(TrainBatchPlans, AProfileMeasuresFullMicrobatchesAndServesTheRun) {
  folder_.write("plans.jsonl", plans(2));
  const std::string flags = kMesh + std::string("--training.steps=2 ");
  const Ran profiled = sluice("profile run.toml " + flags + "--out costs.json");
  ASSERT_EQ(profiled.code, 0) << profiled.err;
  // Two microbatches on four ranks: one sequence of 32 tokens each.
  EXPECT_NE(profiled.err.find("microbatches were measured full, with 32 tokens each"),
            std::string::npos)
      << profiled.err;
  const Json costs = Json::parse(test::read_text(folder_.path() + "/costs.json"));
  EXPECT_EQ(costs["measured_on"]["sequences"], 1);
  const Ran trained = train(flags + "--parallelism.costs=costs.json");
  ASSERT_EQ(trained.code, 0) << trained.err;
}

TEST_F(TrainBatchPlans, ThatDoNotFitAreRefusedInOneLine) {
  const std::string one_step = kMesh + std::string("--training.steps=1 ");
  write_changed([](PlannedBatch& b) { b.plan.microbatches[0][0].sequences = {0}; });
  expect_refused(one_step, 3,
                 "plans.jsonl: line 1: sequence 5 is in no group; 7 of the 8 sequences of "
                 "training.global_batch_size are planned");
  write_changed([](PlannedBatch& b) { b.plan.microbatches[0][0].sequences = {0, 5, 7}; });
  expect_refused(one_step, 3, "plans.jsonl: line 1: microbatch 1: sequence 7 is planned twice");
  write_changed([](PlannedBatch& b) { b.plan.microbatches[0][0].sequences = {0, 8}; });
  expect_refused(one_step, 3, "sequence 8 is not in the global batch, which has 0 to 7");
  write_changed([](PlannedBatch& b) { b.plan.microbatches[1][0].first_rank = 1; });
  expect_refused(one_step, 3, "a group of degree 2 starts at rank 1");
  write_changed([](PlannedBatch&) {});
  expect_refused(one_step + "--model.heads=2", 3,
                 "a group has degree 4: ranks that share sequences divide the heads, and a tensor "
                 "rank has 2");
  write_changed([](PlannedBatch& b) { b.lengths_sha256 = std::string(64, '0'); });
  expect_refused(one_step, 3, "plans.jsonl: the plan for step 1 is of another batch");
  write_changed([](PlannedBatch&) {});
  expect_refused(one_step + "--debug.seed=7", 3, "the plan for step 1 is of another batch");
  expect_refused(one_step + "--data.packing=documents --parallelism.num_microbatches=1", 2,
                 "flexsp.plan_file is plans.jsonl and data.packing is documents");
  expect_refused(one_step + "--flexsp.plan_file=none.jsonl", 2, "none.jsonl");
  expect_refused(one_step +
                     "--parallelism.pipeline_parallel_schedule=dualpipe-v "
                     "--parallelism.num_microbatches=4",
                 2, "plans.jsonl: step 1 has 2 microbatches: ");
  folder_.write("plans.jsonl", plans(2));
  ASSERT_EQ(sluice("schedule 1f1b --devices 2 --microbatches 2 --format csv --out two.csv").code,
            0);
  expect_refused(kMesh + std::string("--parallelism.pipeline_parallel_schedule_csv=two.csv "
                                     "--training.steps=2"),
                 2, "the schedule in two.csv has 2, and no other number");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/checkpoints/LATEST"));
}

}  // namespace
}  // namespace sluice
