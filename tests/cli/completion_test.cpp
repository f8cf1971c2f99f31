// sluice help and sluice completion: what a shell makes of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sluice/base/text.h"
#include "sluice/schedule/generators/generator.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using test::expect_error;
using test::Ran;
using test::run_sluice;

// What bash offers for the last of the words, with the script of `program`.
std::vector<std::string> offered(const std::string& words, const std::string& program) {
  const Ran ran = test::run_shell(fmt::format(
      R"(bash -c 'source <("{}" completion bash); COMP_WORDS=({}); )"
      R"(COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _sluice; printf "%s\n" "${{COMPREPLY[@]}}"')",
      program, words));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  std::vector<std::string> out;
  for (const std::string_view line : split(ran.out, '\n'))
    if (!line.empty()) out.emplace_back(line);
  return out;
}
std::vector<std::string> offered(const std::string& words) { return offered(words, SLUICE_BINARY); }

using Words = std::vector<std::string>;

TEST(Completion, OffersCommandsFlagsNamesAndFormats) {
  EXPECT_EQ(offered("sluice com"), (Words{"compare", "completion"}));
  EXPECT_EQ(offered("sluice schedule --mi"), (Words{"--microbatches"}));
  EXPECT_EQ(offered("sluice compare --device"),
            (Words{"--devices", "--device-memory-cap", "--device-times"}));
  EXPECT_EQ(offered("sluice schedule v-"), (Words{"v-min", "v-half", "v-zb"}));
  EXPECT_EQ(offered("sluice compare zb-v v-m"), (Words{"v-min"}));
  EXPECT_EQ(offered("sluice compare --format \"\""), (Words{"text", "svg", "json"}));
  EXPECT_EQ(offered("sluice help sch"), (Words{"schedule"}));
  EXPECT_EQ(offered("sluice completion \"\""), (Words{"bash", "zsh"}));
  EXPECT_EQ(offered("sluice schedule --costs \"\""), Words{});  // file names, by the shell
  EXPECT_EQ(offered("sluice schedule \"\"").size(), all_generators().size());
}

TEST(Completion, OffersConfigurationKeys) {
  EXPECT_EQ(offered("sluice train a.toml --model.lay"), (Words{"--model.layers="}));
  EXPECT_EQ(offered("sluice partition a.toml --model.lay"), (Words{"--model.layers="}));
  if (std::string(SLUICE_ENGINE_BINARY).empty()) return;
  EXPECT_EQ(offered("sluice profile a.toml --model.lay", SLUICE_ENGINE_BINARY),
            (Words{"--model.layers="}));
}

TEST(Completion, IsForKnownShells) {
  EXPECT_TRUE(run_sluice("completion zsh").out.starts_with("autoload -U +X bashcompinit"));
  expect_error("completion fish", 2, {"completion is for 'fish': bash and zsh are known"});
  expect_error("completion", 2, {"shell"});
}

TEST(Help, IsTheSameAsTheFlags) {
  EXPECT_EQ(run_sluice("help schedule").out, run_sluice("schedule --help").out);
  EXPECT_NE(run_sluice("help").out.find("compare"), std::string::npos);
  EXPECT_EQ(run_sluice("help").out, run_sluice("--help").out);
  expect_error("help shedule", 2, {"'shedule' is no command: did you mean 'schedule'?"});
  for (const char* flag : {"-d,--devices", "-m,--microbatches"})
    for (const char* command : {"schedule", "compare"})
      EXPECT_NE(run_sluice(fmt::format("help {}", command)).out.find(flag), std::string::npos);
}

}  // namespace
}  // namespace sluice
