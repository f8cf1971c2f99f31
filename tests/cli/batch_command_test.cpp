// sluice batch as users meet it: what it prints, and what it refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "sluice/data/indexed.h"
#include "sluice/plan/flexsp/milp.h"
#include "support/golden.h"
#include "support/run_json.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::expect_error;
using test::Ran;

// Of ten sequences on 16 devices the best plan is known.
constexpr const char* kTen = "30000\n20000\n9000\n8000\n6000\n4000\n3000\n2000\n1000\n500\n";
constexpr const char* kCosts = R"({"schema": 1, "flexsp": {"a1": 5e-9, "a2": 2e-4, "b1": 0.6,
  "stash_bytes_per_token": 4e6, "state_bytes": 1e9, "all_to_all_bytes_per_token": 2e6,
  "bytes_per_s": {"2": 1e11, "4": 1e11, "8": 1e11}, "heads": 12}})";

class Batch : public testing::Test {
 protected:
  Batch() {
    folder_.write("ten", kTen);
    folder_.write("costs.json", kCosts);
  }
  std::string file(const std::string& text) const { return folder_.write("lengths", text); }
  std::string on_16(const std::string& name = "ten") const {
    return fmt::format("batch --lengths {}/{} --devices 16 --model 7b --capacity-tokens 6449 ",
                       folder_.path(), name);
  }
  Json json(const std::string& words) const { return test::json_of(words, folder_.path()); }

  test::TemporaryFolder folder_;
};

TEST_F(Batch, TheKnownOptimumIsFound) {
  const Json said = json(on_16() + "--pad 1 --exact");
  EXPECT_NEAR(said["predicted_ms"].get<double>(), 2181.910, 1e-3);
  EXPECT_EQ(said["schema"], 1);
  EXPECT_EQ(said["devices"], 16);
  EXPECT_EQ(said["sequences"], 10);
  EXPECT_EQ(said["dropped"], 0);
  EXPECT_EQ(said["tokens"], 83500);
  EXPECT_EQ(said["padded_tokens"], 83500);
  EXPECT_EQ(said["capacity_tokens"], 6449);
  EXPECT_EQ(said["strategy"], "flex");
  const double bound = said["bound_ms"];
  EXPECT_NEAR(said["gap"].get<double>(), said["predicted_ms"].get<double>() / bound - 1, 1e-9);
  EXPECT_LE(said["bound_any_cut_ms"].get<double>(), bound + 1e-6);
  EXPECT_EQ(said["excluded_degrees"], Json::array());
  EXPECT_EQ(json(on_16())["padded_tokens"], 84096);  // to multiples of 128
}

TEST_F(Batch, ThePublishedIntegerProgramComesAsNear) {
  if (!flexsp::has_milp()) GTEST_SKIP() << "this build has no CBC";
  const Json said = json(on_16() + "--pad 1 --strategy milp --trials 1");
  EXPECT_NEAR(said["predicted_ms"].get<double>(), 2181.910, 1e-3);
  EXPECT_EQ(said["strategy"], "milp");
}

TEST_F(Batch, EverySequenceIsInOneGroupOfNeighbours) {
  const Json said = json(
      "batch --lengths github-like --count 200 --devices 64 --model 7b --capacity-tokens 6449");
  std::set<std::int64_t> seen;
  double seconds = 0;
  for (const Json& microbatch : said["microbatches"]) {
    int ranks = 0;
    double slowest = 0;
    EXPECT_LE(microbatch["bound_ms"].get<double>(),
              microbatch["predicted_ms"].get<double>() + 1e-6);
    for (const Json& group : microbatch["groups"]) {
      const int degree = group["degree"], first = group["first_rank"];
      EXPECT_EQ(first % degree, 0);
      EXPECT_LE(group["tokens"].get<double>(), 6449.0 * degree);
      ranks += degree;
      slowest = std::max(slowest, group["predicted_ms"].get<double>());
      for (const std::int64_t n : group["sequences"])
        EXPECT_TRUE(seen.insert(n).second) << n;
    }
    EXPECT_EQ(ranks, 64);
    EXPECT_DOUBLE_EQ(microbatch["predicted_ms"].get<double>(), slowest);
    seconds += slowest;
  }
  EXPECT_NEAR(said["predicted_ms"].get<double>(), seconds, 1e-6);
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_EQ(*seen.rbegin(), 199);
}

TEST_F(Batch, EqualInputGivesEqualOutput) {
  const auto without_times = [&](const std::string& words) {
    Json said = json(words);
    for (const char* time : {"plan_ms", "bound_time_ms"})
      EXPECT_EQ(said.erase(time), 1u) << time;
    return said;
  };
  const std::string words = "batch --lengths wikipedia --devices 32 --model 7b";
  EXPECT_EQ(without_times(words), without_times(words));
  EXPECT_NE(without_times(words), without_times(words + " --seed 1"));
  EXPECT_EQ(test::run_sluice(words).out, test::run_sluice(words).out);
  EXPECT_EQ(test::run_sluice(words + " --format svg").out,
            test::run_sluice(words + " --format svg").out);
}

TEST_F(Batch, DegreesThatDoNotDivideTheHeadsAreLeftOutAndNamed) {
  const Json said = json(on_16() + "--heads 24");
  EXPECT_EQ(said["excluded_degrees"],
            Json::parse(R"([{"degree": 16, "reason": "it does not divide the 24 heads"}])"));
  for (const Json& microbatch : said["microbatches"])
    for (const Json& group : microbatch["groups"])
      EXPECT_LE(group["degree"], 8);
  const Ran text = test::run_sluice(on_16() + "--heads 24");
  EXPECT_NE(text.out.find("no groups of 16: it does not divide the 24 heads\n"), std::string::npos);
  EXPECT_EQ(json(on_16() + "--min-degree 4")["excluded_degrees"].size(), 2u);
}

TEST_F(Batch, BaselinesAreThereWithBothFills) {
  const Json said = json(on_16());
  const Json& fixed = said["baselines"]["fixed"];
  ASSERT_EQ(fixed.size(), 10u);  // five degrees
  EXPECT_EQ(fixed[0]["degree"], 1);
  EXPECT_EQ(fixed[0]["fill"], 0.9);
  EXPECT_EQ(fixed[1]["fill"], 1);
  EXPECT_TRUE(fixed[0]["predicted_ms"].is_null());  // 30,000 tokens do not fit one device
  const Json own = json(on_16() + "--strategy fixed:8");
  EXPECT_EQ(own["strategy"], "fixed:8");
  EXPECT_EQ(own["predicted_ms"], fixed[6]["predicted_ms"]);
  EXPECT_EQ(json(on_16() + "--strategy batch-ada")["predicted_ms"],
            said["baselines"]["batch_ada"]["predicted_ms"]);
  EXPECT_GT(own["predicted_ms"], said["predicted_ms"]);
}

TEST_F(Batch, CostsOfAFileAreUsed) {
  const std::string words = "batch --lengths ten --devices 8 --memory-cap-mib 40960 --costs ";
  const Json said = json(words + "costs.json");
  EXPECT_EQ(said["capacity_tokens"], 10487);            // (40 GiB - 1e9) / 4e6
  EXPECT_EQ(said["excluded_degrees"][0]["degree"], 8);  // 12 heads
  EXPECT_TRUE(json("batch --lengths ten --devices 4 --capacity-tokens 20000 --costs costs.json")
                  .contains("predicted_ms"));
  expect_error(words + folder_.write("none.json", "{\"schema\": 1}"), 2,
               {"none.json: costs: no section 'flexsp'"});
}

TEST_F(Batch, DocumentsOfATokenFileAreSequences) {
  {
    IndexedWriter writer(folder_.path() + "/corpus");
    const std::vector<std::int32_t> tokens(3'000, 1);
    writer.append(tokens);
    writer.append(std::span(tokens).first(500));
    writer.end_document();
    writer.end_document();
    writer.append(std::span(tokens).first(40));
    writer.end_document();
    writer.commit();
  }
  const Json said = json(on_16("corpus.idx"));
  EXPECT_EQ(said["sequences"], 2);
  EXPECT_EQ(said["tokens"], 3540);
  EXPECT_EQ(json(on_16("corpus.idx") + "--count 1")["sequences"], 1);
}

TEST_F(Batch, AFileNamedLikeADistributionIsTheFile) {
  folder_.write("wikipedia", "700\n900");
  const Json said = json("batch --lengths wikipedia --devices 16 --model 7b");
  EXPECT_EQ(said["sequences"], 2);
  EXPECT_EQ(said["tokens"], 1600);
}

TEST_F(Batch, OverlongSequencesAreRefusedDroppedOrCut) {
  const std::string words =
      "batch --devices 4 --model 7b --capacity-tokens 1000 --lengths " + file("300\n5000\n200\n");
  expect_error(words, 3,
               {"line 2: sequence 1 has 5,000 tokens, padded to 5120, and the largest group holds "
                "4000 (4 devices x 1000 tokens): give devices more memory",
                "--overlong drop would leave out 1 of 3 sequences, and truncate would cut to 3,968 "
                "tokens"});
  const Json dropped = json(words + " --overlong drop");
  EXPECT_EQ(dropped["sequences"], 2);
  EXPECT_EQ(dropped["dropped"], 1);
  EXPECT_EQ(dropped["tokens"], 500);
  const Json cut = json(words + " --overlong truncate");
  EXPECT_EQ(cut["sequences"], 3);
  EXPECT_EQ(cut["dropped"], 0);
  EXPECT_EQ(cut["tokens"], 300 + 3968 + 200);
  expect_error(words + " --max-length 4096 --capacity-tokens 6000", 3,
               {"line 2: sequence 1 has 5,000 tokens, and --max-length is 4096: raise it"});
  expect_error(words + " --max-length 100 --overlong drop", 3, {"nothing is left"});
  // Of draws, a longer one is drawn again: only what does not fit is an error.
  expect_error("batch --lengths wikipedia --devices 2 --model 7b --capacity-tokens 1000", 2,
               {"from wikipedia has", "or give --max-length 1920"});
  const Json drawn =
      json("batch --lengths github-like --devices 64 --model 7b --max-length 8192 --count 100");
  EXPECT_EQ(drawn["sequences"], 100);
  EXPECT_GT(drawn["dropped"], 0);
}

TEST_F(Batch, LengthsThatAreNoneAreRefusedByLine) {
  const auto refused = [&](const std::string& text, const std::vector<std::string>& words) {
    expect_error("batch --devices 16 --model 7b --lengths " + file(text), 3, words);
  };
  refused("128\n0\n", {"lengths' line 2: \"0\" is no length", "from 1 to 1000000000"});
  refused("-5\n", {"line 1: \"-5\" is no length"});
  refused("128\n\n256\n", {"line 2: \"\" is no length"});
  refused("128\n12.5\n", {"line 2: \"12.5\""});
  refused("128, 256\n", {"line 1: \"128, 256\""});
  refused("99999999999999999999\n", {"line 1: \"99999999999999999999\""});
  refused("", {"lengths' is empty"});
  refused(std::string("1\0002\n", 4), {"not a text file"});
  std::string many;
  for (int n = 0; n < 65'537; ++n)
    many += "1\n";
  refused(many, {"more than 65536 sequences: give --count"});
  EXPECT_EQ(json("batch --devices 4 --model 7b --lengths " + file("5\r\n 7 \n9"))["tokens"], 21);
}

TEST_F(Batch, WrongFlagsAreRefused) {
  const std::string batch = "batch --devices 16 ";
  const std::string wikipedia = batch + "--model 7b --lengths wikipedia ";
  expect_error(batch + "--model 7b --lengths wikipeda", 2,
               {"--lengths is 'wikipeda': did you mean 'wikipedia'?", "github-like"});
  expect_error(batch + "--model 7b --lengths no/such/file", 2, {"no such file"});
  expect_error(wikipedia + "--overlong drop", 2, {"--overlong is for files: wikipedia"});
  expect_error(batch + "--model 7b --seed 1 --lengths " + file("5"), 2,
               {"--seed is for distributions"});
  expect_error(wikipedia + "--costs x.json", 2, {"--costs and --model are both given"});
  expect_error(batch + "--lengths wikipedia --costs x.json --heads 8", 2,
               {"--costs and --heads are both given"});
  expect_error(batch + "--lengths wikipedia --costs x.json --sharding none", 2,
               {"--costs and --sharding are both given"});
  expect_error(wikipedia + "--capacity-tokens 10 --memory-cap-mib 10", 2,
               {"--capacity-tokens and --memory-cap-mib are both given"});
  expect_error(batch + "--lengths wikipedia", 2, {"--model or --costs is needed"});
  expect_error(batch + "--model 7b", 2, {"--lengths is missing"});
  expect_error("batch --lengths wikipedia --model 7b", 2, {"--devices is missing"});
  expect_error(batch + "--lengths wikipedia --model 70b", 2, {"--model is", "7b, 13b, 30b"});
  expect_error(wikipedia + "--strategy flexx", 2, {"did you mean 'flex'?"});
  expect_error(wikipedia + "--strategy fixed:3", 2, {"a degree is a power of two up to 16"});
  expect_error(wikipedia + "--strategy fixed:32", 2, {"a power of two up to 16 devices"});
  expect_error(wikipedia + "--heads 8 --strategy fixed:16", 2,
               {"no groups of 16: it does not divide the 8 heads"});
  expect_error(on_16() + "--strategy fixed:2", 2,
               {"sequence 0 has 30,080 tokens with padding, and a group of 2 holds 12898"});
  expect_error(wikipedia + "--strategy fixed:8 --exact", 2, {"--exact needs --strategy flex"});
  expect_error(wikipedia + "--bucketing fixed:512 --exact", 2,
               {"--exact and --bucketing are both given"});
  expect_error("batch --lengths wikipedia --count 8 --devices 256 --model 7b --exact", 2,
               {"--exact: 256 devices have too many mixes", "--min-degree"});
  expect_error(wikipedia + "--strategy fixed:8 --trials 3", 2, {"--trials needs --strategy flex"});
  expect_error(wikipedia + "--bucketing fixed", 2, {"--bucketing is 'fixed': needs dp"});
  expect_error(wikipedia + "--sharding some", 2, {"parameters, states or none"});
  expect_error(wikipedia + "--overlong cut", 2, {"error, drop or truncate"});
  expect_error(wikipedia + "--sharding none", 2, {"the states take 116612 MiB"});
  expect_error(wikipedia + "--pad 1000000", 2, {"--pad is 1000000, and the largest group holds"});
  expect_error(wikipedia + "--min-degree 32", 2, {"--min-degree is 32, and there are 16 ranks"});
  expect_error(batch + "--model 7b --table --format svg", 2, {"a table is text or json"});
  expect_error(batch + "--model 7b --table --count 5", 2, {"--count needs --lengths"});
  expect_error(wikipedia + "--table", 2, {"--table and --lengths are both given"});
  expect_error(wikipedia + "--strategy tp-cp --min-degree 4", 2,
               {"--min-degree needs a strategy of sequence parallelism"});
  expect_error("batch --devices 16 --model 7b --lengths commoncrawl-like --max-length 1", 2,
               {"--max-length is 1: of"});
}

TEST_F(Batch, ATableNamesTheDegreesThatAreLeftOut) {
  const Ran ran = test::run_sluice("batch --table --devices 16 --model 7b --heads 4");
  EXPECT_NE(ran.out.find("no groups of 8: it does not divide the 4 heads\n"), std::string::npos)
      << ran.out;
  EXPECT_EQ(
      json("batch --table --devices 16 --model 7b --heads 4")["excluded_degrees"][0]["degree"], 8);
}

TEST_F(Batch, AFileOfFewerLengthsThanAreCountedIsNoted) {
  const Ran ran = test::run_sluice("batch --devices 16 --model 7b --count 100 --lengths " +
                                   folder_.path() + "/ten");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find(" has 10 sequences, fewer than --count 100: the batch has them all\n"),
            std::string::npos)
      << ran.err;
}

// Sequences that find no room looked at every group: minutes instead of seconds.
TEST_F(Batch, AsManyDevicesAsSequencesArePlannedInSeconds) {
  const Json said = json("batch --lengths wikipedia --count 16384 --devices 16384 --model 7b");
  EXPECT_LT(said["plan_ms"].get<double>(), 30e3);
}

TEST_F(Batch, ATableSaysWhatEachDegreeTakesOrThatItDoesNotFit) {
  const std::string words = "batch --table --devices 64 --model 7b";
  const Json said = json(words);
  EXPECT_EQ(said["degrees"], Json({1, 2, 4, 8, 16, 32, 64}));
  const Json& row = said["lengths"][5];
  EXPECT_EQ(row["tokens"], 32768);
  EXPECT_TRUE(row["ms"][2].is_null());
  EXPECT_NEAR(row["ms"][3].get<double>(), 2156.006, 6e-4);
  EXPECT_EQ(said["lengths"].back()["tokens"], 196608);
  const Ran text = test::run_sluice(words);
  EXPECT_NE(text.out.find("2,156.0"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("OOM"), std::string::npos) << text.out;
}

TEST_F(Batch, ThePictureShowsGroupsAndBaselines) {
  const std::string out = folder_.path() + "/plan.svg";
  ASSERT_EQ(test::run_sluice(on_16() + "--out " + out).code, 0);
  const std::string svg = test::read_text(out);
  for (const char* part : {"<svg ", ">SP8</text>", ">0: 10 sequences<", ">8x2<", "batch-ada",
                           "groups of 16, 90 % full", "too small for a sequence: groups of 1, 2, 4",
                           "lengths 30080", "</svg>"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace sluice
