// What the program without torch answers of a training run: train --dry-run, train --print-config
// and partition, without data and without a GPU.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/run_json.h"
#include "support/run_sluice.h"
#include "support/small_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;
using test::run_sluice;

class PlanCommands : public testing::Test {
 protected:
  PlanCommands() { folder_.write("run.toml", test::small_run(1000)); }

  Ran run(const std::string& words) const { return run_sluice(words, folder_.path()); }
  Json json(const std::string& words) const { return test::json_of(words, folder_.path()); }
  void expect_line(const std::string& text, const std::string& begin) const {
    EXPECT_NE(("\n" + text).find("\n" + begin), std::string::npos) << text;
  }

  test::TemporaryFolder folder_;
};

TEST_F(PlanCommands, ADryRunNeedsNeitherTorchNorData) {
  const Ran text = run("train run.toml --dry-run");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  expect_line(text.out, "zb-v on 2 ranks, 4 microbatches of 2 sequences, backend threads;");
  expect_line(text.out, "119,168 parameters; bubble ");
  expect_line(text.out, "data.path is 'corpus.txt', which is not here: the data was not checked\n");
  EXPECT_EQ(text.out.find("per step, "), std::string::npos) << text.out;  // no time is known
  const Json said = json("train run.toml --dry-run");
  EXPECT_EQ(said["schedule"], "zb-v");
  EXPECT_EQ(said["ranks"].size(), 2u);
  EXPECT_EQ(said["slice_sizes"], Json::array());
  EXPECT_EQ(said["parameters"], 119168);
  EXPECT_EQ(said["bubble"], 0);  // zb-v
  const std::string other = "train run.toml --dry-run --parallelism.pipeline_parallel_schedule=";
  EXPECT_GT(json(other + "1f1b")["bubble"].get<double>(), 0.1);
  for (const char* unknown : {"step_s", "tokens_per_s", "mfu", "days", "lower_bounds"})
    EXPECT_TRUE(said.at(unknown).is_null()) << unknown;
  EXPECT_EQ(said["remarks"], Json({"data.path is 'corpus.txt', which is not here: the data was not "
                                   "checked"}));
  EXPECT_EQ(json("train run.toml --dry-run --data.path=")["remarks"],
            Json({"data.path is not set: the data was not checked"}));
  // Nothing is written.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

// Options of a schedule are keys here: the flags of sluice schedule are not known.
TEST_F(PlanCommands, MistakesAreToldInKeysOfTheConfiguration) {
  const std::string schedule = " --parallelism.pipeline_parallel_schedule=";
  for (const char* command : {"train run.toml --dry-run", "partition run.toml"}) {
    SCOPED_TRACE(command);
    const Ran dualpipe = run(command + schedule + "dualpipe --parallelism.num_microbatches=2");
    EXPECT_EQ(dualpipe.code, 2);
    EXPECT_EQ(dualpipe.err,
              "sluice: parallelism.num_microbatches is 2: dualpipe needs an even number of at "
              "least 2p = 4 on 2 devices\n");
    const Ran capped = run(command + schedule + "adaptive-v --parallelism.memory_cap=1");
    EXPECT_EQ(capped.code, 2);
    expect_line(capped.err, "sluice: parallelism.memory_cap is 1: adaptive-v with 2 devices");
    const Ran knobs = run(command + schedule + "v-half --parallelism.stages_per_device=4");
    EXPECT_EQ(knobs.code, 2);
    EXPECT_EQ(knobs.err,
              "sluice: parallelism.stages_per_device is 4: v-half always has 2; leave the key "
              "out\n");
  }
}

TEST_F(PlanCommands, APeakBoundsTheTimeOfAStep) {
  const std::string command = "train run.toml --dry-run --cluster.peak_tflops=1";
  const Ran text = run(command);
  expect_line(text.out, "at least ");
  EXPECT_NE(text.out.find(" days for 1,000 steps; bounds by cluster.peak_tflops alone, "),
            std::string::npos)
      << text.out;
  const Json said = json(command);
  const double step = said["step_s"];
  EXPECT_GT(step, 0);
  EXPECT_DOUBLE_EQ(said["tokens_per_s"], 8 * 32 / step);
  EXPECT_DOUBLE_EQ(said["days"], 1000 * step / 86400);
  EXPECT_GT(said["mfu"].get<double>(), 0);
  EXPECT_LT(said["mfu"].get<double>(), 1);
  EXPECT_EQ(said["lower_bounds"], true);
}

TEST_F(PlanCommands, AProfilePredictsTheTimeOfAStep) {
  folder_.write("costs.json", R"({"schema":1,"stages":[
    {"F":[1],"I":[1],"W":[1],"layers":4},{"F":[1],"I":[1],"W":[1],"layers":4}]})");
  const std::string command =
      "train run.toml --dry-run --parallelism.pipeline_parallel_schedule=1f1b "
      "--parallelism.costs=costs.json";
  expect_line(run(command).out, "119,168 parameters; bubble 20.0% of a step, by the times of ");
  expect_line(run(command).out, "15 s per step, 17 tokens/s, 0.174 days for 1,000 steps\n");
  EXPECT_EQ(json(command)["lower_bounds"], false);
}

TEST_F(PlanCommands, SlicesAreShown) {
  const std::string command = "train run.toml --dry-run --parallelism.slices=3";
  expect_line(run(command).out, "slices of 11, 11, 10 tokens\n");
  EXPECT_EQ(json(command)["slice_sizes"], (std::vector<int>{11, 11, 10}));
}

// What a device may use is said by the configuration: that of a GPU is not asked for.
TEST_F(PlanCommands, ARunFitsIntoItsCaps) {
  const std::string gpu = "train run.toml --dry-run --cluster.device=cuda ";
  EXPECT_TRUE(json(gpu)["machine"].is_null());
  EXPECT_TRUE(json(gpu)["fits"].is_null());
  EXPECT_EQ(json(gpu + "--parallelism.device_memory_mib=1000")["fits"], true);
  const Json small = json(gpu + "--parallelism.device_memory_mib=1000,1");
  EXPECT_EQ(small["fits"], false);
  const std::string remark = small["remarks"].back();
  EXPECT_TRUE(remark.starts_with("train would refuse here: device 1 needs ")) << remark;
  EXPECT_NE(remark.find("parallelism.device_memory_mib is 1.00"), std::string::npos) << remark;
  // A machine has its own limit beside them.
  EXPECT_EQ(json("train run.toml --dry-run --parallelism.device_memory_mib=1")["fits"], false);
  EXPECT_EQ(json("train run.toml --dry-run")["fits"], true);
}

TEST_F(PlanCommands, AConfigurationIsPrinted) {
  const Ran ran = run("train run.toml --print-config --model.layers=12");
  EXPECT_EQ(ran.code, 0) << ran.err;
  expect_line(ran.out, "layers = 12");
  EXPECT_NE(ran.out.find("# flag --model.layers\n"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("# default, here threads\n"), std::string::npos) << ran.out;
  folder_.write("printed.toml", ran.out);
  EXPECT_EQ(json("train printed.toml --dry-run")["ranks"],
            json("train run.toml --dry-run --model.layers=12")["ranks"]);
}

TEST_F(PlanCommands, PartitionDealsTheLayers) {
  const std::string command = "partition run.toml --model.vocab_size=2000 ";
  const Ran text = run(command);
  EXPECT_EQ(text.code, 0) << text.err;
  expect_line(text.out, "zb-v: 8 layers on 2 devices, 4 microbatches; work counted in FLOPs\n");
  expect_line(text.out, "simulated step: 0.");
  const Json dealt = json(command);
  const std::vector<int> layers = dealt["auto"]["layers"];
  expect_line(text.out,
              fmt::format("parallelism.layers_per_stage = [{}]\n", fmt::join(layers, ", ")));
  EXPECT_EQ(dealt["even"]["layers"], (std::vector<int>{2, 2, 2, 2}));
  EXPECT_LT(layers.back(), 2);  // it holds the head
  EXPECT_EQ(run(command + "--memory-cap-mib 0.5,0.5").code, 2);
}

TEST_F(PlanCommands, TrainingNeedsTorchAndSaysWhereItIs) {
  const Ran ran = run("train run.toml");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(
      ran.err,
      "sluice: this program was built without torch: run sluice-engine train, or in a checkout "
      "./sluice train, which fetches torch and builds it\n");
  EXPECT_EQ(run("train run.toml --format json").code, 2);
}

// Whoever has torch need not know which program answers.
TEST_F(PlanCommands, BothProgramsAnswerAlike) {
  if (std::string(SLUICE_ENGINE_BINARY).empty()) GTEST_SKIP() << "no engine";
  for (const char* words :
       {"train run.toml --dry-run",
        "train run.toml --dry-run --format json --cluster.peak_tflops=1",
        "train run.toml --dry-run --checkpoint.load=nowhere", "train run.toml --print-config",
        "partition run.toml", "partition run.toml --format json", "train --help",
        "partition --help", "train run.toml --dry-run --format yaml"}) {
    const Ran small = run(words);
    const Ran engine =
        test::run_shell(fmt::format("'{}' {}", SLUICE_ENGINE_BINARY, words), folder_.path());
    EXPECT_EQ(small.code, engine.code) << words;
    EXPECT_EQ(small.out, engine.out) << words;
    EXPECT_EQ(small.err, engine.err) << words;
  }
}

}  // namespace
}  // namespace sluice
