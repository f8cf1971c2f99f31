#include "sluice/runtime/files/run_id.h"

#include <filesystem>

#include "runtime/saved_run.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

TEST(RunId, EveryNewOneIsAnother) {
  const std::string one = new_run_id(), two = new_run_id();
  EXPECT_EQ(one.size(), 8U);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos) << one;
  EXPECT_NE(one, two);
}

// A run with this checkpoint.folder and this id saves step 4.
void save_as(const std::string& folder, const std::string& state) {
  RealFileSystem files;
  CheckpointFolder writer(files, {.folder = folder, .start_step = 0});
  writer.write_shard(4, {}, {});
  CheckpointInfo info = info_of(4);
  info.state = state;
  writer.commit(info);
}

TEST(RunId, ARunKeepsItWhereItResumesFromItsOwnFolder) {
  const TemporaryFolder scratch;
  const std::string own = scratch.path() + "/own", copy = scratch.path() + "/copy";
  save_as(own, run_state("1a2b3c4d", own, 1.5));
  std::filesystem::copy(own, copy, std::filesystem::copy_options::recursive);
  EXPECT_EQ(run_id(own, "latest", 4), "1a2b3c4d");
  EXPECT_EQ(run_id(own + "/", own, 4), "1a2b3c4d");
  EXPECT_EQ(run_id(own + "/./", own + "//step-00000004/", 4), "1a2b3c4d");
  for (const auto& [folder, load, step] : {
           std::tuple(own, std::string("none"), 0),
           std::tuple(own, std::string("latest"), 0),    // a fresh start
           std::tuple(own, copy, 4),                     // goes on from another's
           std::tuple(scratch.path() + "/new", own, 4),  // the same
           std::tuple(copy, std::string("latest"), 4),   // a copy goes its own way
           std::tuple(std::string(), own, 4),            // saves nothing
       }) {
    const std::string id = run_id(folder, load, step);
    EXPECT_EQ(id.size(), 8U);
    EXPECT_NE(id, "1a2b3c4d") << folder << " " << load;
  }
}

TEST(RunId, AStateKeepsEveryBitOfTheNorm) {
  for (const double norm : {0.1 + 0.2, 1.0 / 3, 5e-324, 0.0})
    EXPECT_EQ(gradient_norm_of(run_state("1a2b3c4d", "own", norm)), norm);
  EXPECT_EQ(gradient_norm_of("{}"), 0);
  EXPECT_EQ(gradient_norm_of(R"({"gradient_norm":"1"})"), 0);
}

TEST(RunId, ACheckpointThatNamesNoRunStartsANewOne) {
  for (const char* state : {"{}", R"({"run":7,"folder":7})", R"({"run":"1a2b3c4d"})"}) {
    const TemporaryFolder scratch;
    save_as(scratch.path() + "/own", state);
    const std::string id = run_id(scratch.path() + "/own", "latest", 4);
    EXPECT_EQ(id.size(), 8U);
    EXPECT_NE(id, "1a2b3c4d");
  }
}

}  // namespace
}  // namespace sluice::test
