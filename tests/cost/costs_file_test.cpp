#include <gtest/gtest.h>

#include "sluice/base/error.h"
#include "sluice/cost/costs.h"
#include "sluice/schedule/text_format.h"

namespace sluice {
namespace {

const Schedule& one_stage() {
  static const Schedule schedule = read_schedule("0F0,0B0\n");
  return schedule;
}
const Schedule& two_slices() {
  static const Schedule schedule = read_schedule("0F0.0,0F0.1,0B0.1,0B0.0\n");
  return schedule;
}

std::string error_of(const std::string& json, const Schedule& schedule = one_stage()) {
  try {
    costs_from_json(json, schedule);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "no error";
}

TEST(CostsFile, BDefaultsToIPlusW) {
  const Costs costs =
      costs_from_json(R"({"schema":1,"stages":[{"F":[1],"I":[2],"W":[4]}]})", one_stage());
  EXPECT_EQ(costs.at(0, 0).b, 6);
  EXPECT_TRUE(costs.measured);
}

TEST(CostsFile, ANumberForAWholeMicrobatchIsSharedByTheSlices) {
  const Costs costs = costs_from_json(
      R"({"schema":1,"stages":[{"F":[1,2],"I":[1,1],"W":[1,1],"after_F":[6,2],"sent_forward":8,"kv_bytes":[1,2]}]})",
      two_slices());
  EXPECT_EQ(costs.at(0, 1).f, 2);
  EXPECT_EQ(costs.at(0, 0).after_f, 6);
  EXPECT_EQ(costs.at(0, 1).after_i, 2);  // after_I defaults to after_F
  EXPECT_EQ(costs.at(0, 1).sent_forward, 4);
  EXPECT_EQ(costs.at(0, 1).kv, 2);
}

TEST(CostsFile, WhatIsWrittenReadsBackTheSame) {
  Costs costs(1, 2);
  costs.at(0, 0) = {0.1, 0.2, 0.3, 0.4, 4e9, 5, 6, 7, 8, 9};
  costs.at(0, 1) = {1e-9, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  costs.links[{0, 0}] = {1e-6, 2.5e10};
  costs.default_link = {3e-6, 0};
  costs.overlap = 0.25;
  costs.reduce = {12};
  costs.data_link = {4e-6, 1e9};
  costs.contention = {1};
  const std::string text = costs_to_json(costs);
  const Costs read = costs_from_json(text, two_slices());
  EXPECT_EQ(costs_to_json(read), text);
  for (int slice = 0; slice < 2; ++slice) {
    const OpCosts &a = costs.at(0, slice), &b = read.at(0, slice);
    EXPECT_EQ(std::tie(a.f, a.i, a.w, a.b, a.after_f, a.after_i, a.kv, a.kv_gradient),
              std::tie(b.f, b.i, b.w, b.b, b.after_f, b.after_i, b.kv, b.kv_gradient));
    EXPECT_EQ(std::tie(a.sent_forward, a.sent_backward), std::tie(b.sent_forward, b.sent_backward));
  }
  EXPECT_EQ(read.link(0, 0).bytes_per_time, 2.5e10);
  EXPECT_EQ(read.default_link.latency, 3e-6);
  EXPECT_EQ(read.overlap, 0.25);
  EXPECT_EQ(read.reduce_bytes(0), 12);
  EXPECT_EQ(read.data_link.latency, 4e-6);
  EXPECT_EQ(read.data_link.bytes_per_time, 1e9);
  EXPECT_EQ(read.contention, costs.contention);
}

MeasuredOn measured_on() {
  MeasuredOn on;
  ModelShape shape;
  shape.family = ModelFamily::llama;
  shape.layers = 4;
  shape.dim = 64;
  shape.heads = 8;
  shape.kv_heads = 2;
  shape.ffn_dim = 256;
  shape.vocab_size = 257;
  on.set_model(shape, RecomputeLevel::all_but_attention);
  on.sequence_length = 128;
  on.sequences = 2;
  on.dtype = "bfloat16";
  on.tensor_parallel_degree = 1;
  on.device = "cuda, 2 partitions of 66 SMs";
  return on;
}

TEST(CostsFile, MicrobatchesMayBeUnequal) {
  const Schedule schedule = read_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const std::string stages = R"("stages":[{"F":[1],"I":[2],"W":[3]},{"F":[4],"I":[5],"W":[6]}])";
  const std::string first = R"({"F":[7,8],"I":[9,10],"W":[11,12],"after_F":[13,14]})";
  const auto file = [&](const std::string& microbatches) {
    return R"({"schema":1,)" + stages + R"(,"per_microbatch":)" + microbatches + "}";
  };
  const Costs costs = costs_from_json(
      file("[" + first + R"(,{"F":[1,2],"B":[3,4],"I":[1,1],"W":[2,2]}])"), schedule);
  EXPECT_EQ(costs.num_microbatches(), 2);
  EXPECT_EQ(costs.at(1, 0).f, 4);
  EXPECT_EQ(costs.of(0, 1, 0).f, 8);
  EXPECT_EQ(costs.of(0, 1, 0).b, 22);
  EXPECT_EQ(costs.of(0, 1, 0).after_i, 14);
  EXPECT_EQ(costs.of(1, 1, 0).b, 4);
  EXPECT_EQ(costs.duration(schedule.programs[1][3]), 4);  // 1B1
  EXPECT_EQ(costs_to_json(costs_from_json(costs_to_json(costs), schedule)), costs_to_json(costs));
  for (const auto& [microbatches, what] :
       {std::pair{"[" + first + "]", "per_microbatch has 1 microbatch, but custom has 2: give one"},
        {std::string("[]"), "per_microbatch is []: needs a list with one object per microbatch"},
        {std::string(R"([{"F":[1],"I":[1],"W":[1]}])"), "[0] has 1 stage, but stages has 2"},
        {std::string(R"([{"F":[1,1],"I":[1],"W":[1,1]}])"),
         "lists of 2 and 1 stages: all need one"},
        {std::string(R"([{"F":[1,1],"I":[1,1],"W":[1,1],"after_F":4}])"),
         "per_microbatch[0].after_F is 4: needs a list with one number per stage"},
        {std::string(R"([{"F":[1,1],"B":[1,1]}])"), "[0] has B alone, but stages has I and W"},
        {std::string(R"([{"F":[1,1],"I":[1,1],"W":[1,1],"layers":[1,1]}])"),
         "per_microbatch[0] has an unknown key 'layers'"}})
    EXPECT_NE(error_of(file(microbatches), schedule).find(what), std::string::npos)
        << error_of(file(microbatches), schedule);
  // A search goes by the stages alone.
  EXPECT_EQ(stage_costs_from_json(file("[" + first + "]"), true).at(1, 0).w, 6);
  EXPECT_THROW(stage_costs_from_json(file("[" + first + "]")), UserError);
  EXPECT_NE(error_of(R"({"schema":1,"stages":[{"F":[1,1],"I":[1,1],"W":[1,1]}],)"
                     R"("per_microbatch":[{"F":[1],"I":[1],"W":[1]}]})",
                     two_slices())
                .find("the stages have 2 slices: unequal microbatches are not sliced"),
            std::string::npos);
  EXPECT_THROW(stage_costs_from_json(file("[" + first + "]")), UserError);
  // What stages says and a microbatch does not would silently count as nothing.
  EXPECT_NE(error_of(R"({"schema":1,"stages":[{"F":[1],"B":[2],"after_F":[3]}],)"
                     R"("per_microbatch":[{"F":[1],"B":[2]}]})")
                .find("per_microbatch[0] has no 'after_F', but stages has: give it for every"),
            std::string::npos);
}

TEST(CostsFile, SaysWhatItWasMeasuredOn) {
  Costs costs(1, 1);
  EXPECT_FALSE(stage_costs_from_json(costs_to_json(costs)).measured_on);
  costs.measured_on = measured_on();
  const std::string text = costs_to_json(costs);
  const Costs read = costs_from_json(text, one_stage());
  ASSERT_TRUE(read.measured_on);
  EXPECT_EQ(costs_to_json(read), text);
  EXPECT_EQ(read.measured_on->text(),
            "llama of 4 layers, dim 64, 8 heads, 2 kv_heads, ffn_dim 256, vocab_size 257; 2 x 128 "
            "tokens, bfloat16, recompute all-but-attention, tensor_parallel_degree 1, cuda, 2 "
            "partitions of 66 SMs");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return error_of(changed);
  };
  EXPECT_EQ(replaced("\"dim\"", "\"dimm\"").substr(0, 66),
            "costs: measured_on.model has an unknown key 'dimm': did you mean '");
  EXPECT_EQ(replaced("\"dim\": 64, ", ""), "costs: measured_on.model has no 'dim'");
  EXPECT_EQ(replaced("\"dim\": 64", "\"dim\": 6.4"),
            "costs: measured_on.model.dim is 6.4: needs a whole number");
  EXPECT_EQ(replaced("\"bfloat16\"", "16"), "costs: measured_on.dtype is 16: needs a text");
}

TEST(CostsFile, SaysHowLongItsSlicesAre) {
  Costs costs(1, 2);
  costs.slice_sizes = {100, 28};
  costs.measured_on = measured_on();
  const std::string text = costs_to_json(costs);
  EXPECT_EQ(costs_from_json(text, two_slices()).slice_sizes, costs.slice_sizes);
  const auto with = [&](const std::string& sizes) {
    std::string changed = text;
    changed.replace(changed.find("[100, 28]"), 9, sizes);
    return error_of(changed, two_slices());
  };
  EXPECT_EQ(with("[100]"),
            "costs: slice_sizes has 1 numbers, and the stages have 2 slices: give one each");
  EXPECT_EQ(with("[127.5, 0.5]"), "costs: slice_sizes[0] is 127.5: needs a number of tokens");
  EXPECT_EQ(with("[128, 0]"), "costs: slice_sizes[1] is 0: a slice has at least one token");
  EXPECT_EQ(with("[100, 30]"),
            "costs: slice_sizes sums to 130, but measured_on.sequence_length is 128");
  EXPECT_EQ(with("[1e9, 1]"),
            "costs: slice_sizes sums to 1000000001: a sequence has at most 1000000000 tokens");
}

TEST(CostsFile, EveryDifferenceToARunIsNamed) {
  const MeasuredOn measured = measured_on();
  MeasuredOn run = measured;
  run.device = "cuda";
  EXPECT_TRUE(measured_differences(measured, run).empty());  // the kind of device counts
  for (const MeasuredField& field : measured_fields()) {
    MeasuredOn other = run;
    if (field.number)
      other.*field.number += 1;
    else
      other.*field.text = "x";
    const std::vector<std::string> found = measured_differences(measured, other);
    ASSERT_EQ(found.size(), 1u) << field.name;
    EXPECT_TRUE(found[0].starts_with(field.config_key)) << found[0];
  }
  run.dim = 32;
  run.dtype = "float32";
  EXPECT_EQ(measured_differences(measured, run),
            (std::vector<std::string>{"model.dim is 32 and was 64 when measured",
                                      "training.dtype is float32 and was bfloat16 when measured"}));
}

TEST(CostsFile, ContentionIsOneSpeedPerDevice) {
  const Schedule two_devices = read_schedule("0F0,0B0\n1F0,1B0\n");
  const auto with = [](const std::string& contention) {
    return R"({"schema":1,"stages":[{"F":[1],"B":[2]},{"F":[1],"B":[2]}],"contention":)" +
           contention + "}";
  };
  EXPECT_EQ(costs_from_json(with("[1.5,1]"), two_devices).contention,
            (std::vector<double>{1.5, 1}));
  EXPECT_TRUE(costs_from_json(with("[]"), two_devices).contention.empty());
  EXPECT_EQ(stage_costs_from_json(with("[1.5,1]")).contention, (std::vector<double>{1.5, 1}));
  EXPECT_EQ(error_of(with("1.5"), two_devices),
            "costs: contention is 1.5: needs a list with one number per device");
  EXPECT_EQ(error_of(with("[1.5,\"1\"]"), two_devices),
            "costs: contention[1] is \"1\": needs a number");
  EXPECT_EQ(error_of(with("[1.5,1.2,1]"), two_devices),
            "costs: contention has 3 numbers, but there are 2 devices: give the speed with 1, 2, "
            "... 2 of them busy, or leave it out");
  EXPECT_EQ(error_of(with("[0,1]"), two_devices),
            "costs: contention[0] is 0: needs a speed from 0.001 to 1000, relative to that with "
            "all devices busy");
  EXPECT_EQ(error_of(with("[3,1.5]"), two_devices),
            "costs: contention ends with 1.5: all devices busy is speed 1; divide all numbers "
            "by 1.5");
}

TEST(CostsFile, StageTimesAddUpTheSlices) {
  const SearchTimes times = search_times(stage_costs_from_json(
      R"({"schema":1,"stages":[{"F":[1,2],"I":[3,4],"W":[5,6],"sent_forward":20}],
          "default_link":{"latency_s":3,"bytes_per_s":10}})"));
  ASSERT_EQ(times.stages.size(), 1u);
  EXPECT_EQ(times.stages[0].f, 3);
  EXPECT_EQ(times.stages[0].i, 7);
  EXPECT_EQ(times.stages[0].w, 11);
  EXPECT_EQ(times.comm, 5);
}

TEST(CostsFile, EveryMistakeIsNamed) {
  EXPECT_NE(error_of("{").find("costs: not JSON"), std::string::npos);
  EXPECT_EQ(error_of("[]"), "costs: the file is []: needs an object");
  EXPECT_EQ(error_of(R"({"stages":[]})"), "costs: schema is missing: this version reads schema 1");
  EXPECT_EQ(error_of(R"({"schema":2,"stages":[]})"),
            "costs: schema is 2: this version reads schema 1");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[]})"),
            "costs: stages is missing: needs a list with one object per stage");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[-1]}]})"),
            "costs: stages[0].W[0] is -1: needs a number from 0 to 1e18");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":["1"],"I":[1],"W":[1]}]})"),
            "costs: stages[0].F[0] is \"1\": needs a number");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":1,"I":[1],"W":[1]}]})"),
            "costs: stages[0].F is 1: needs a list with one number per slice");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1]}]})"),
            "costs: stages[0] has no 'W'");
  EXPECT_NE(error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1],"after_f":[1]}]})")
                .find("did you mean 'after_F'?"),
            std::string::npos);
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":[1,1],"I":[1,1],"W":[1]}]})"),
            "costs: stages[0] has lists of 2 and 1 slices: all need one number per slice");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]}]})", two_slices()),
            "costs: stages[0] has 1 slices, but custom has 2: profile the same slices");
  EXPECT_EQ(
      error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]},{"F":[1],"I":[1],"W":[1]}]})"),
      "costs: 2 stages, but custom has 1: profile that schedule, or use schedule --redeal");
  EXPECT_EQ(
      error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]}],"links":[{"from":0,"to":7}]})"),
      "costs: links[0] names device 7: the schedule has devices 0..0");
  EXPECT_EQ(
      error_of(
          R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]}],"default_link":{"bytes_per_s":0}})"),
      "costs: default_link.bytes_per_s is 0: leave it out for a link without a limit");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]}],"overlap":2})"),
            "costs: overlap is 2: needs a share from 0 to 1");
  EXPECT_EQ(error_of(R"({"schema":1,"schema":1,"stages":[]})"),
            "costs: the key 'schema' appears twice");
  EXPECT_EQ(
      error_of(
          R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]}],"links":[{"from":0,"to":0},{"from":0,"to":0}]})"),
      "costs: links[1] repeats the link from 0 to 0");
  const Schedule split = read_schedule("0F0,0I0,0W0\n");
  EXPECT_EQ(error_of(R"({"schema":1,"stages":[{"F":[1],"B":[2]}]})", split),
            "costs: stages[0] has B alone, but custom runs I and W separately: give I and W");
  EXPECT_EQ(costs_from_json(R"({"schema":1,"stages":[{"F":[1],"B":[2]}]})", one_stage()).at(0, 0).b,
            2);
  EXPECT_NE(error_of(std::string(100000, '[')).find("costs:"), std::string::npos);
  EXPECT_NE(error_of(R"({"schema":1,"stages":[{"F":[1e999],"I":[1],"W":[1]}]})").find("costs:"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
