// Mistakes on the command line, as users meet their answers: one line, exit code 2, nothing
// written.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using test::expect_error;
using test::Ran;
using test::run_sluice;
using test::TemporaryFolder;

TEST(Mistakes, NamesOfUsersAreNoFields) {
  expect_error("check '`devices-of-mine`'", 2, {"'`devices-of-mine`'"});
  expect_error("check '`mine`.csv'", 2, {"'`mine`.csv'"});
}

TEST(Mistakes, BadInputGetsOneClearLine) {
  expect_error("schedule v-hlaf --devices 4 --microbatches 8", 2,
               {"v-hlaf", "did you mean 'v-half'"});
  expect_error("schedule 1f1b --devices 0 --microbatches 8", 2, {"--devices", "'0'"});
  expect_error("schedule 1f1b --devices 4 --microbatches -1", 2, {"--microbatches", "'-1'"});
  expect_error("schedule 1f1b --devices four --microbatches 8", 2, {"--devices", "'four'"});
  expect_error("schedule 1f1b --devices 4", 2, {"--microbatches is missing"});
  expect_error("schedule --devices 4", 2, {"needs a name"});
  expect_error("schedule seq1f1b --devices 4 --microbatches 8 --slices 9 --tokens 8", 2,
               {"--slices is 9", "8 tokens"});
  expect_error("schedule seq1f1b --devices 4 --microbatches 8 --slice-sizes 5,4 --tokens 8", 2,
               {"sum to --tokens 8"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --slices 2", 2,
               {"--slices is 2", "seq1f1b"});
  expect_error("schedule 1f1b --devices 1000000 --microbatches 60000000", 2, {"ops", "fewer"});
  expect_error("schedule zb --devices 4 --microbatches 8", 2, {"--memory-cap", "from"});
  expect_error("schedule adaptive-v --devices 4 --microbatches 8", 2,
               {"--memory-cap", "from 4 to 8"});
  expect_error("schedule adaptive-v --devices 4 --microbatches 8 --memory-cap 2", 2,
               {"from 4 to 8"});
  expect_error("schedule zb --devices 4 --microbatches 8 --memory-cap nan", 2,
               {"--memory-cap is 'nan'"});
  for (const char* name : {"zb", "adaptive-v"}) {
    const std::string request = fmt::format("schedule {} -d 4 -m 8 --memory-cap ", name);
    expect_error(request + "8,8,8", 2,
                 {"--memory-cap has 3 numbers, but there are 4 devices: give one per device"});
    expect_error(request + "8,8,,8", 2, {"--memory-cap is '8,8,,8': '' is not a number"});
    expect_error(request + "8,8,0,8", 2, {"--memory-cap is '8,8,0,8': needs a positive number"});
  }
  expect_error("schedule zb -d 4 -m 8 --memory-cap 4,4,0.5,4", 2,
               {"--memory-cap is 4,4,0.5,4: ", "give every device a cap of 1 to 8"});
  expect_error("schedule adaptive-v -d 4 -m 8 --memory-cap 8,8,1,8", 2,
               {"--memory-cap is 8,8,1,8: ", "8,8,3,8 stage-activations would do\n"});
  expect_error("compare -d 4 -m 8 --memory-cap 4,4,4,4", 2, {"is '4,4,4,4': needs a number"});
  expect_error("schedule 1f1b -d 4 -m 8 --memory-cap 4,4,4,4", 2, {"1f1b takes no cap"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --format sgv", 2,
               {"did you mean 'svg'"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --times 1,2", 2, {"--times", "three"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --times 1,2,-3", 2, {"--times"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --devises 3", 2,
               {"did you mean '--devices'"});
  expect_error("shedule 1f1b", 2, {"did you mean 'schedule'"});
  expect_error("", 2, {"--help"});
  expect_error("schedule interleaved-1f1b --devices 4 --microbatches 10 --group-size 4", 2,
               {"--group-size is 4", "5 works"});
  expect_error("schedule dualpipe --devices 3 --microbatches 12", 2,
               {"sluice: --devices is 3: dualpipe needs an even number"});
  expect_error("schedule v-half -d 4 -m 8 --stages-per-device 3", 2,
               {"sluice: --stages-per-device is 3: v-half always has 2; leave the flag out\n"});
  expect_error("schedule block -d 3 -m 8 --block " SLUICE_SOURCE_DIR "/examples/block-v-half.toml",
               2, {"sluice: --devices is 3: ", "; use --devices 4 or another block\n"});
  expect_error("schedule zb-v --devices 4 --microbatches 8 --slices 2 --format torch-csv", 2,
               {"torch-csv", "slices"});
  expect_error("schedule dualpipe --devices 4 --microbatches 8 --format torch-csv", 2,
               {"torch-csv", "pipes"});
  expect_error("schedule block --devices 4 --microbatches 8", 2, {"--block FILE"});
  expect_error("schedule block --devices 4 --microbatches 8 --block /nowhere.toml", 2,
               {"/nowhere.toml"});
  expect_error("check /nowhere.csv", 2, {"/nowhere.csv", "No such file"});
  expect_error("check /", 2, {"Is a directory"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --out /nowhere/x.svg", 2,
               {"/nowhere/x.svg"});
  expect_error("schedule 1f1b --devices 4 --microbatches 8 --costs /nowhere.json", 2,
               {"/nowhere.json"});
}

// Whether its size is known beforehand (a file) or not (a pipe, a device).
TEST(Mistakes, FlagsOfAsynchronousSchedulesAreCalledAsTheyAreGiven) {
  expect_error("schedule amdp -d 4 -m 8 --order A --update-slot 9", 2,
               {"--update-slot is 9: order A on 4 devices loses no gradient with 3 to 4"});
  expect_error("schedule 1f1b -d 4 -m 8 --windows 2", 2, {"--windows is 2: 1f1b updates"});
  expect_error("schedule amdp -d 4 -m 8 --order R --in-flight 3", 2, {"--in-flight is 3"});
  expect_error("schedule amdp -d 4 -m 8 --order R --pipes 3", 2, {"--pipes is 3"});
  expect_error("schedule amdp -d 4 -m 8 --order R --border 2", 2, {"--border is 2"});
  expect_error("schedule 1f1b -d 4 -m 8 --order R", 2, {"--order is R"});
  expect_error("schedule 1f1b -d 4 -m 8 --weights stash", 2, {"--weights is stash"});
  expect_error("schedule 1f1b -d 4 -m 8 --max-mismatch 1", 2, {"--max-mismatch is 1"});
  expect_error("schedule 1f1b -d 4 -m 8 --max-delay 1", 2, {"--max-delay is 1"});
}

TEST(Mistakes, FilesWithoutEndAreRefused) {
  const TemporaryFolder folder;
  const std::string huge = folder.path() + "/huge";
  const std::string priced = "schedule zb-1p --devices 2 --microbatches 2 --costs ";
  const std::string block = "schedule block --devices 4 --microbatches 8 --block ";
  const std::string csv = folder.write("s.csv", "0F0,0B0\n");
  struct Row {
    std::string words;
    std::uintmax_t mebibytes;
  };
  for (const Row& row : {Row{"check ", 1024}, Row{"simulate ", 1024}, Row{priced, 64},
                         Row{"simulate " + csv + " --costs ", 64}, Row{block, 64}}) {
    expect_error(row.words + "/dev/zero", 2, {"'/dev/zero' is not a text file"});
    folder.write("huge", "0F0");
    std::filesystem::resize_file(huge, (row.mebibytes << 20) + 1);
    expect_error(row.words + huge, 2,
                 {"huge' is too large: at most " + std::to_string(row.mebibytes) + " MiB"});
  }
  const test::Ran piped = test::run_shell("yes 0F0, | '" SLUICE_BINARY "' " + block + "-");
  EXPECT_EQ(piped.code, 2);
  EXPECT_EQ(piped.err, "sluice: '-' is too large: at most 64 MiB are read from such a file\n");
}

TEST(Mistakes, WordsAndFlagsTooManyAreNamed) {
  expect_error("schedule 1f1b --devices", 2, {"--devices needs a value;"});
  expect_error("schedule 1f1b v-half --devices 2", 2, {"'v-half' is one word too many;"});
  expect_error("check a.csv b.csv", 2, {"'b.csv' is one word too many;"});
}

TEST(Mistakes, AFlagInTheWrongPlaceIsToldWhereItBelongs) {
  expect_error("--devices 4 schedule 1f1b --microbatches 8", 2,
               {"'--devices' stands before the command: write sluice schedule ... --devices;"});
  expect_error("--devices=4 schedule 1f1b", 2, {"write sluice schedule ... --devices;"});
  expect_error("--devices 4", 2, {"'--devices' is a flag of schedule, compare, batch;"});
  expect_error("check a.csv --devices 4", 2,
               {"'--devices' is a flag of schedule, compare, batch, not of check;"});
  expect_error("check a.csv -d 4", 2,
               {"'-d' is a flag of schedule, compare, batch, not of check;"});
  expect_error("compare --redeal", 2, {"'--redeal' is a flag of schedule, not of compare;"});
}

TEST(Mistakes, AnEndingThatIsNoFormatIsRefused) {
  const TemporaryFolder folder;
  const std::string out = " --out " + folder.path() + "/x.";
  for (const std::string& request :
       {std::string("schedule 1f1b -d 2 -m 2"), std::string("compare -d 2 -m 2")}) {
    SCOPED_TRACE(request);
    expect_error(request + out + "pdf", 2,
                 {"x.pdf': .pdf is no format here; end it in .svg, ", "--format"});
    expect_error(request + out + "pdf --format svg", 2,
                 {"x.pdf', and the format is svg: name it .svg, or change --format"});
    expect_error(request + out + "svg --format json", 2,
                 {"x.svg', and the format is json: name it .json"});
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    for (const char* fine : {"txt", "json --format json", "svg", "v2 --format json"})
      EXPECT_EQ(run_sluice(request + out + fine).code, 0) << fine;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      std::filesystem::remove(entry.path());
  }
  for (const char* fine : {"csv --format torch-csv", "json --format chrome", "csv", "html"})
    EXPECT_EQ(run_sluice("schedule 1f1b -d 2 -m 2" + out + fine).code, 0) << fine;
}

TEST(Mistakes, AFlagThatWouldDoNothingIsRefused) {
  const TemporaryFolder folder;
  const std::string request = "schedule 1f1b --devices 2 --microbatches 2 ";
  const std::string csv = folder.path() + "/s.csv";
  ASSERT_EQ(run_sluice(request + "--out " + csv).code, 0);

  expect_error(request + "--lowered", 2, {"--lowered needs --format json, csv or torch-csv\n"});
  expect_error(request + "--lowered --out " + folder.path() + "/x.svg", 2, {"--lowered needs"});
  EXPECT_NE(run_sluice(request + "--lowered --format json").out.find("SEND_F"), std::string::npos);
  for (const std::string& priced : {request, "simulate " + csv + " "}) {
    expect_error(priced + "--timeline", 2, {"--timeline needs --format json\n"});
    expect_error(priced + "--timeline --format csv", 2, {"--timeline needs"});
    EXPECT_EQ(run_sluice(priced + "--timeline --out " + folder.path() + "/x.json").code, 0);
    expect_error(priced + "--reduce-time 3", 2,
                 {"--reduce-time is 3", "no REDUCE_GRAD", "schedule --reduce"});
    expect_error(priced + "--out ''", 2, {"--out is '': give it a value or leave it out"});
    expect_error(priced + "--costs ''", 2, {"--costs is ''"});
  }
  expect_error(request + "--block ''", 2, {"--block is ''"});
  expect_error(request + "--redeal", 2, {"--redeal needs --costs FILE\n"});
  for (const char* flag : {"--format json", "--devices 4", "--lowered"})
    expect_error(std::string("schedule --list ") + flag, 2,
                 {"takes no flag but --out: leave " + std::string(flag).substr(0, 8)});
  expect_error("schedule 1f1b --list", 2, {"leave name out"});
  EXPECT_EQ(run_sluice("schedule --list --out " + folder.path() + "/list").code, 0);
}

TEST(Mistakes, OfACostsFileNameIt) {
  const TemporaryFolder folder;
  const std::string csv = folder.write("s.csv", "0F0,0B0\n");
  const std::string good = R"({"schema":1,"stages":[{"F":[1],"B":[2]}]})";
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "/costs.json: costs: not JSON: it is empty\n"},
           {"{\"schema\":1,\n\"a\":tru}",
            "/costs.json: costs: not JSON: line 2, column 8: invalid literal\n"},
           {"{\"schema\":2}", "/costs.json: costs: schema is 2: this version reads schema 1\n"},
           {good + "}", "/costs.json: costs: not JSON: line 1, column 42: unexpected '}'"}}) {
    const std::string costs = folder.write("costs.json", text);
    expect_error("simulate " + csv + " --costs " + costs, 2, {words});
    // Of a search, which reads the times before there is a schedule.
    expect_error("schedule zb-1p --devices 1 --microbatches 1 --costs " + costs, 2, {words});
  }
  const std::string costs = folder.write("costs.json", good);
  EXPECT_EQ(run_sluice("simulate " + csv + " --costs " + costs).code, 0);
}

TEST(Mistakes, ComparingNothingIsOneLineAndNoFile) {
  const TemporaryFolder folder;
  const std::string svg = folder.path() + "/c.svg";
  expect_error(
      "compare --devices 512 --microbatches 100000 --out " + svg, 2,
      {"nothing to compare: gpipe: 512 devices x 1 stages each x 100000 microbatches x 1 slices",
       "use fewer microbatches"});
  const std::string request = "compare --devices 4 --microbatches 8 ";
  for (const char* format : {"text", "svg", "json"})
    expect_error(request + fmt::format("--device-memory-cap 0.1 --out {} --format {}", svg, format),
                 2, {"--device-memory-cap is '0.1': needs a number from 1 to"});
  EXPECT_FALSE(std::filesystem::exists(svg));
  // The least that is taken has a schedule.
  for (const char* least : {"--devices 4 --microbatches 8", "--devices 1 --microbatches 1",
                            "--devices 5 --microbatches 3 --slices 3 --keep-after-i 0.3"})
    EXPECT_EQ(run_sluice(fmt::format("compare {} --memory-cap 1", least)).code, 0) << least;
}

TEST(Mistakes, ACapIsSaidAsItWasGiven) {
  const Ran ran = run_sluice("compare --devices 4 --microbatches 8 --memory-cap 1.5");
  EXPECT_EQ(ran.code, 0);
  // 4 stage-activations of two stages.
  EXPECT_NE(ran.out.find("  adaptive-v cap=1.5: peak 2 is over the cap 1.5\n"), std::string::npos)
      << ran.out;
}

}  // namespace
}  // namespace sluice
