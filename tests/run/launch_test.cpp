#include "sluice/run/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "sluice/base/error.h"

namespace sluice {
namespace {

std::optional<Launch> discover(const std::map<std::string, std::string>& variables) {
  return discover_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const std::map<std::string, std::string>& variables) {
  try {
    discover(variables);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, WithoutALauncherThereIsNoRank) { EXPECT_FALSE(discover({})); }

TEST(Launch, MpirunSaysRankSizeAndLocalRank) {
  const std::optional<Launch> launch = discover({{"OMPI_COMM_WORLD_RANK", "5"},
                                                 {"OMPI_COMM_WORLD_SIZE", "8"},
                                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                 {"PMIX_RANK", "5"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
}

TEST(Launch, SrunSaysItInSlurmsWordsAndInPmis) {
  const std::map<std::string, std::string> slurm = {
      {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "0"}};
  std::map<std::string, std::string> both = slurm;
  both["PMIX_RANK"] = "2";
  for (const auto& variables : {slurm, both}) {
    const std::optional<Launch> launch = discover(variables);
    ASSERT_TRUE(launch);
    EXPECT_EQ(launch->rank, 2);
    EXPECT_EQ(launch->size, 4);
    EXPECT_EQ(launch->local_rank, 0);
  }
  const std::optional<Launch> pmi = discover({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}});
  ASSERT_TRUE(pmi);
  EXPECT_EQ(pmi->size, 3);
}

TEST(Launch, SetsThatContradictEachOtherAreRefusedWithBoth) {
  const std::string text = error_of({{"OMPI_COMM_WORLD_RANK", "1"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"PMI_RANK", "0"},
                                     {"PMI_SIZE", "4"}});
  EXPECT_NE(text.find("PMI_RANK=0, PMI_SIZE=4 contradicts OMPI_COMM_WORLD_RANK=1"),
            std::string::npos)
      << text;
  EXPECT_NE(error_of({{"PMIX_RANK", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}),
            "");
  EXPECT_NE(error_of({{"PMI_RANK", "1"},
                      {"PMI_SIZE", "2"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "4"}}),
            "");
}

TEST(Launch, UnderMpirunSlurmsSetBelongsToItsDaemon) {
  const std::optional<Launch> launch = discover({{"OMPI_COMM_WORLD_RANK", "3"},
                                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                                 {"SLURM_PROCID", "0"},
                                                 {"SLURM_STEP_NUM_TASKS", "1"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 3);
}

TEST(Launch, ABatchScriptIsNotALauncher) {
  EXPECT_FALSE(discover({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}}));
}

TEST(Launch, ValuesThatAreNoRanksAreRefused) {
  for (const char* rank : {"", "-1", "1x", "4", "99999999999999999999", "2147483648"}) {
    EXPECT_NE(error_of({{"PMI_RANK", rank}, {"PMI_SIZE", "4"}}), "") << rank;
  }
  EXPECT_NE(error_of({{"PMI_RANK", "0"}}), "");
}

TEST(Launch, ALibraryThatDisagreesWithItsLauncherIsRefused) {
  const std::optional<Launch> launch =
      discover({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  check_launch(launch, 1, 4);
  check_launch(std::nullopt, 0, 1);
  check_launch(discover({{"PMIX_RANK", "1"}}), 1, 4);
  EXPECT_THROW(check_launch(launch, 0, 1), UserError);
  EXPECT_THROW(check_launch(launch, 2, 4), UserError);
}

TEST(Launch, AutoIsThreadsOrWhatTheLauncherStarted) {
  Config config;
  ASSERT_EQ(config.comm.backend, Backend::automatic);
  const auto chosen = [&](int size) {
    return chosen_backend(config, Launch{.rank = 0, .size = size, .source = ""});
  };
  EXPECT_EQ(chosen_backend(config, std::nullopt), Backend::threads);
  EXPECT_EQ(chosen(1), Backend::threads);
  EXPECT_EQ(chosen(2), Backend::mpi);
  EXPECT_EQ(chosen(0), Backend::mpi);  // PMIx alone does not say how many
  config.cluster.device = DeviceKind::cuda;
  EXPECT_EQ(chosen_backend(config, std::nullopt), Backend::threads);
  EXPECT_EQ(chosen(2), Backend::nccl);
  config.comm.backend = Backend::mpi;
  EXPECT_EQ(chosen_backend(config, std::nullopt), Backend::mpi);
}

}  // namespace
}  // namespace sluice
