// The text format: what is written is read back the same, and what is wrong is refused with the
// row, the column and the reason.
#include "sluice/schedule/text_format.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/transforms/communication.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

// The message with which a text is refused; "" if it is read.
std::string refusal(std::string_view text) {
  try {
    read_schedule(text);
    return "";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
}

std::string torch_refusal(std::string_view text) {
  try {
    write_schedule(read_schedule(text), TextFlavour::torch);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

// What the native text says of a schedule is everything.
void expect_round_trip(const Schedule& schedule) {
  const std::string text = write_schedule(schedule, TextFlavour::native);
  EXPECT_EQ(read_schedule(text), schedule) << text;
}

void expect_torch_round_trip(const Schedule& schedule) {
  const std::string text = write_schedule(schedule, TextFlavour::torch);
  Schedule read = read_schedule(text);
  EXPECT_EQ(read.name, "custom");
  read.name = schedule.name;
  EXPECT_EQ(read, schedule) << text;
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  return files;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(TextFormatTest, EveryGeneratorsOutputIsReadBackTheSame) {
  int in_torch = 0;
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    for (const int p : {1, 2, 4})
      for (const int slices : {1, 3}) {
        GeneratorOptions options;
        options.devices = p;
        options.microbatches = 2 * p;
        options.slices = generator->knobs.slices ? slices : 1;
        if (generator->knobs.memory_cap) options.memory_cap = 2 * p;
        Schedule schedule;
        try {
          schedule = generate_schedule(*generator, options);
        } catch (const UserError&) {
          continue;
        }
        SCOPED_TRACE(schedule.name);
        const Schedule lowered = add_communication(schedule).schedule;
        expect_round_trip(schedule);
        expect_round_trip(lowered);
        if (schedule.num_slices > 1 || schedule.num_pipes() > 1 || schedule.has(OpKind::Update))
          continue;
        expect_torch_round_trip(schedule);
        expect_torch_round_trip(lowered);
        ++in_torch;
      }
  }
  EXPECT_GT(in_torch, 40);
}

TEST(TextFormatTest, TheMetadataLineSaysWhatTheOpsDoNot) {
  GeneratorOptions options;
  options.devices = 2;
  options.microbatches = 1;
  options.slices = 2;
  Schedule schedule = generate_schedule("seq1f1b", options);
  schedule.slice_sizes = {3000, 1096};
  EXPECT_EQ(write_schedule(schedule, TextFlavour::native),
            "# sluice {\"schema\":1,\"name\":\"seq1f1b\",\"placement\":\"linear\",\"stages\":2,"
            "\"microbatches\":1,\"slices\":2,\"pipes\":1,\"slice_sizes\":[3000,1096]}\n"
            "0F0.0,0F0.1,0B0.1,0B0.0\n"
            "1F0.0,1F0.1,1B0.1,1B0.0\n");
  expect_round_trip(schedule);
}

TEST(TextFormatTest, EveryKindOfOpIsReadBackTheSame) {
  expect_round_trip(read_schedule("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0UPDATE,0RESHARD\n"));
  expect_round_trip(read_schedule("0UPDATE@0,0F0@0,0F1@1,0B0@0,0B1@1,0UPDATE@1\n"));
  expect_round_trip(read_schedule("0F0,(0F1;0B0)OVERLAP_F_B,(0B1;0F2;0F3)OVERLAP_F_B\n"));
  expect_round_trip(read_schedule("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"));
  expect_round_trip(read_schedule("0F0.0@0,0F0.1@0,0F1.0@1,0F1.1@1\n"));
}

TEST(TextFormatTest, WhatIsNotAValidScheduleIsKeptAsItIs) {
  // The reader does not judge: these are the validator's to report.
  expect_round_trip(read_schedule("0B0,0F0,0F0\n"));
  expect_round_trip(read_schedule("# sluice {\"slices\":1,\"pipes\":1}\n0F0.3,0F0@2,0F0.1@1\n"));
  expect_round_trip(read_schedule("# sluice {\"stages\":1,\"microbatches\":1}\n0F0,5F0,0F7\n"));
  expect_round_trip(read_schedule("# sluice {\"placement\":\"linear\"}\n1F0,0F0\n1B0,0B0\n"));
}

TEST(TextFormatTest, DevicesWithoutOpsAreKept) {
  const Schedule schedule = read_schedule("0F0,0B0\n,\n\n,,\n");
  EXPECT_EQ(schedule.num_devices(), 4);
  expect_round_trip(schedule);
}

TEST(TextFormatTest, PlacementIsReadOffTheOps) {
  EXPECT_EQ(read_schedule("0F0\n1F0\n").placement.kind(), PlacementKind::linear);
  EXPECT_EQ(read_schedule("0F0,2F0\n1F0,3F0\n").placement.kind(), PlacementKind::looped);
  EXPECT_EQ(read_schedule("0F0,3F0\n1F0,2F0\n").placement.kind(), PlacementKind::vee);
  EXPECT_EQ(read_schedule("0F0@0,1F1@1\n1F0@0,0F1@1\n").placement.kind(), PlacementKind::mirrored);
  EXPECT_EQ(read_schedule("1F0\n0F0\n").placement.kind(), PlacementKind::custom);
  EXPECT_EQ(read_schedule("1F0\n0F0\n").placement.device_of(0, 1), 0);
}

TEST(TextFormatTest, IdleCellsQuotesBlanksAndLineEndsDoNotMatter) {
  const Schedule plain = read_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  for (const std::string_view text :
       {"0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n", "0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1",
        "\"0F0\",\"0F1\",\"0B0\",\"0B1\"\n\"\",\"1F0\",\" 1B0 \",\"1F1\",\"1B1\"\n",
        " 0F0 ,\t0F1, 0B0,0B1 \n 1F0,1B0 ,1F1,1B1\n\n\r\n\n",
        "0F0,0F1,0B0,0B1,\n1F0,1B0,1F1,1B1,,,,,,\n"})
    EXPECT_EQ(read_schedule(text), plain) << text;
}

TEST(TextFormatTest, EveryFileOfPyTorchsIsReadWrittenAndValid) {
  int files = 0;
  for (const auto& path : files_of(std::string(SLUICE_TEST_DATA) + "/torch")) {
    SCOPED_TRACE(path.filename());
    const std::string text = read_file(path);
    const Schedule schedule = read_schedule(text);
    EXPECT_EQ(write_schedule(schedule, TextFlavour::torch), text);
    const Validation validation = validate(schedule);
    for (const Problem& problem : validation.problems)
      ADD_FAILURE() << problem.line();
    ++files;
  }
  EXPECT_GE(files, 8);
}

TEST(TextFormatTest, CellsThatAreNoOpAreRefusedWithRowAndColumn) {
  EXPECT_EQ(refusal("0F0,F1\n"),
            "row 1, column 2: 'F1': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(
      refusal("0F0\n1F0,,1X0\n"),
      "row 2, column 3: '1X0': 'X' is not an op kind; the kinds are F I W B SEND_F RECV_F SEND_B "
      "RECV_B REDUCE_GRAD UPDATE UNSHARD RESHARD");
  EXPECT_EQ(
      refusal("0f0\n"),
      "row 1, column 1: '0f0': '' is not an op kind; the kinds are F I W B SEND_F RECV_F SEND_B "
      "RECV_B REDUCE_GRAD UPDATE UNSHARD RESHARD");
  EXPECT_EQ(refusal("0F0x\n"), "row 1, column 1: '0F0x': unexpected 'x' after the op");
  EXPECT_EQ(refusal("0F0 0F1\n"), "row 1, column 1: '0F0 0F1': unexpected ' 0F1' after the op");
  EXPECT_EQ(refusal("0F0@1.2\n"), "row 1, column 1: '0F0@1.2': unexpected '.2' after the op");
  EXPECT_EQ(refusal("-1F0\n"),
            "row 1, column 1: '-1F0': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal("0F-1\n"), "row 1, column 1: '0F-1': F needs a microbatch number");
  EXPECT_EQ(refusal("0F\n"), "row 1, column 1: '0F': F needs a microbatch number");
  EXPECT_EQ(refusal("0SEND_F\n"), "row 1, column 1: '0SEND_F': SEND_F needs a microbatch number");
  EXPECT_EQ(refusal("0UNSHARD3\n"), "row 1, column 1: '0UNSHARD3': UNSHARD takes no microbatch");
  EXPECT_EQ(refusal("0REDUCE_GRAD67108864\n"),
            "row 1, column 1: '0REDUCE_GRAD67108864': window number is too large (at most "
            "67108863)");
  EXPECT_EQ(refusal("0UPDATE.1\n"), "row 1, column 1: '0UPDATE.1': unexpected '.1' after the op");
  EXPECT_EQ(refusal("0F0.\n"), "row 1, column 1: '0F0.': '.' needs a slice number after it");
  EXPECT_EQ(refusal("0F0@x\n"), "row 1, column 1: '0F0@x': '@' needs a pipe number after it");
  EXPECT_EQ(refusal("\"0F0,0F1\"\n"),
            "row 1, column 1: '\"0F0': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal("\"\n"),
            "row 1, column 1: '\"': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal("# a comment\n0F0\n"),
            "row 1, column 1: '# a comment': an op starts with its stage number, as in 2F0");
}

TEST(TextFormatTest, RowsAreCountedWithTheMetadataLine) {
  EXPECT_EQ(refusal("# sluice {}\n0F0\nx\n"),
            "row 3, column 1: 'x': an op starts with its stage number, as in 2F0");
}

TEST(TextFormatTest, BytesThatAreNotPrintableAreShownAsHex) {
  EXPECT_EQ(refusal("\xef\xbb\xbf"
                    "0F0\n"),
            "row 1, column 1: '\\xef\\xbb\\xbf0F0': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal(std::string_view("0F0\0", 4)),
            "row 1, column 1: '0F0\\x00': unexpected '\\x00' after the op");
  EXPECT_EQ(refusal("0\xc3\x84"
                    "0\n"),
            "row 1, column 1: '0\\xc3\\x840': '' is not an op kind; the kinds are F I W B SEND_F "
            "RECV_F SEND_B "
            "RECV_B REDUCE_GRAD UPDATE UNSHARD RESHARD");
}

TEST(TextFormatTest, LongCellsAreShownCutShort) {
  EXPECT_EQ(refusal(std::string(1000, 'x')),
            "row 1, column 1: '" + std::string(40, 'x') +
                "...': an op starts with its stage number, as in 2F0");
}

TEST(TextFormatTest, GroupsThatAreNotWholeAreRefused) {
  for (const std::string cell :
       {"(0F0;0B0", "(0F0;0B0)", "(0F0;0B0)OVERLAP", "(0F0)OVERLAP_F_Bx",
        "((0F0;0B0)OVERLAP_F_B;0F1)OVERLAP_F_B", "(", "()", "(0F0;0B0))OVERLAP_F_B"})
    EXPECT_EQ(refusal(cell),
              "row 1, column 1: '" + cell + "': a group is written (0F4;7B2)OVERLAP_F_B");
  EXPECT_EQ(
      refusal("((0F0;0B0)OVERLAP_F_B\n"),
      "row 1, column 1: '((0F0;0B0)OVERLAP_F_B': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal("()OVERLAP_F_B\n"),
            "row 1, column 1: '()OVERLAP_F_B': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(
      refusal("(0F0;;0B0)OVERLAP_F_B\n"),
      "row 1, column 1: '(0F0;;0B0)OVERLAP_F_B': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal("0F0)OVERLAP_F_B\n"),
            "row 1, column 1: '0F0)OVERLAP_F_B': unexpected ')OVERLAP_F_B' after the op");
}

TEST(TextFormatTest, NumbersTooLargeAreRefused) {
  EXPECT_EQ(refusal("1048576F0\n"),
            "row 1, column 1: '1048576F0': stage number is too large (at most 1048575)");
  EXPECT_EQ(refusal("0F67108864\n"),
            "row 1, column 1: '0F67108864': microbatch number is too large (at most 67108863)");
  EXPECT_EQ(refusal("0F0.65536\n"),
            "row 1, column 1: '0F0.65536': slice number is too large (at most 65535)");
  EXPECT_EQ(refusal("0F0@2048\n"),
            "row 1, column 1: '0F0@2048': pipe number is too large (at most 2047)");
  EXPECT_EQ(refusal("99999999999999999999999F0\n"),
            "row 1, column 1: '99999999999999999999999F0': stage number is too large (at most "
            "1048575)");
}

TEST(TextFormatTest, NumbersThatImplyAbsurdTablesAreRefused) {
  EXPECT_EQ(refusal("0F0,0B67108863\n"),
            "the largest numbers are stage 0, microbatch 67108863, slice 0: that takes 6.71e+07 "
            "forwards, and the text has 2 ops; one of these numbers is wrong");
  EXPECT_EQ(refusal("1048575F67108863.65535\n"),
            "the largest numbers are stage 1048575, microbatch 67108863, slice 65535: that takes "
            "4.61e+18 "
            "forwards, and the text has 1 ops; one of these numbers is wrong");
  EXPECT_EQ(refusal("4000F0@2047\n"), "the largest pipe is 2047: too many for 1 ops");
  EXPECT_EQ(refusal("# sluice {\"microbatches\":67108864}\n0F0\n"),
            "the largest numbers are stage 0, microbatch 67108863, slice 0: that takes 6.71e+07 "
            "forwards, and the text has 1 ops; one of these numbers is wrong");
}

TEST(TextFormatTest, TextWithoutASingleOpIsRefused) {
  for (const std::string_view text :
       {"", "\n", "\n\n\r\n", ",,,\n,,\n", "# sluice {}", "# sluice {}\n"})
    EXPECT_EQ(refusal(text), "row 1: no ops found: a schedule has one row of ops per device");
  EXPECT_EQ(refusal("0UPDATE\n"),
            "row 1: no F, I, W or B found: a schedule has ops such as 0F0 and 0B0");
}

TEST(TextFormatTest, BadMetadataIsRefusedWithItsKey) {
  const auto with = [](std::string_view json) {
    return refusal("# sluice " + std::string(json) + "\n0F0,0B0\n");
  };
  EXPECT_EQ(with("{}"), "");
  const std::string no_object = "row 1: '# sluice ' must be followed by a JSON object";
  for (const std::string_view json : {"[1]", "7"})
    EXPECT_EQ(with(json), no_object) << json;
  for (const std::string_view json :
       {"", "{", "{\"stages\":1", "nope", "{} {}", "{'a':1}", "{\"name\":\"\xff\"}"})
    EXPECT_TRUE(with(json).starts_with("row 1: metadata: not JSON: "))
        << json << ": " << with(json);
  EXPECT_EQ(with("{\"name\":\"a\",\"name\":\"b\"}"),
            "row 1: metadata: the key 'name' appears twice");
  EXPECT_EQ(with("{\"name\":\"\\u001b[31mred\"}"),
            "row 1: metadata 'name' is '\\x1b[31mred': control characters are not allowed");
  EXPECT_EQ(with("{\"stages\":\"two\"}"),
            "row 1: metadata 'stages' is \"two\": needs a whole number from 1 to 1048576");
  EXPECT_EQ(with("{\"stages\":-1}"),
            "row 1: metadata 'stages' is -1: needs a whole number from 1 to 1048576");
  EXPECT_EQ(with("{\"microbatches\":0}"),
            "row 1: metadata 'microbatches' is 0: needs a whole number from 1 to 67108864");
  EXPECT_EQ(with("{\"microbatches\":1.5}"),
            "row 1: metadata 'microbatches' is 1.5: needs a whole number from 1 to 67108864");
  EXPECT_EQ(
      with("{\"microbatches\":18446744073709551615}"),
      "row 1: metadata 'microbatches' is 18446744073709551615: needs a whole number from 1 to "
      "67108864");
  EXPECT_EQ(with("{\"slices\":65537}"),
            "row 1: metadata 'slices' is 65537: needs a whole number from 1 to 65536");
  EXPECT_EQ(with("{\"pipes\":[2]}"),
            "row 1: metadata 'pipes' is array: needs a whole number from 1 to 2048");
  EXPECT_EQ(with("{\"schema\":2}"),
            "row 1: metadata 'schema' is 2: needs a whole number from 1 to 1");
  EXPECT_EQ(with("{\"name\":null}"), "row 1: metadata 'name' is null: needs a string");
  EXPECT_EQ(with("{\"placement\":{}}"), "row 1: metadata 'placement' is object: needs a string");
  EXPECT_EQ(with("{\"colour\":1}"),
            "row 1: metadata 'colour' is unknown: schema, name, placement, stages, microbatches, "
            "windows, weights, updates_by_stage (true or false), slices, pipes and slice_sizes (a "
            "list) are known");
  EXPECT_EQ(with("{\"weights\":\"old\"}"),
            "row 1: metadata 'weights' is 'old': needs newest, stash, previous "
            "or predicted");
  EXPECT_EQ(with("{\"microbatches\":3,\"windows\":2}"),
            "row 1: metadata has 3 microbatches in 2 windows: each window has as many");
  EXPECT_EQ(with("{\"slices\":3,\"slice_sizes\":[1,2]}"),
            "row 1: metadata has 2 slice_sizes for 3 slices");
  EXPECT_EQ(with("{\"slice_sizes\":[1,2]}"), "row 1: metadata has 2 slice_sizes for 1 slices");
  EXPECT_EQ(with("{\"slice_sizes\":[0]}"),
            "row 1: metadata 'slice_sizes' is 0: needs a whole number from 1 to 1099511627776");
  EXPECT_EQ(with("{\"placement\":\"zigzag\"}"),
            "row 1: metadata placement 'zigzag' does not fit 1 stage on 1 device in 1 pipe: "
            "linear, looped, v, mirrored and custom are known");
  EXPECT_EQ(with("{\"placement\":\"linear\",\"stages\":2}"),
            "row 1: metadata placement 'linear' does not fit 2 stages on 1 device in 1 pipe: "
            "linear, looped, v, mirrored and custom are known");
}

TEST(TextFormatTest, HostileMetadataIsRefusedWithoutGreatCost) {
  EXPECT_EQ(refusal("# sluice {\"name\":\"" + std::string(1 << 20, 'x') + "\"}\n0F0\n"),
            "row 1: metadata of 1048596 bytes is too long: at most 1048576");
  const std::string deep = std::string(400000, '[') + std::string(400000, ']');
  EXPECT_EQ(refusal("# sluice {\"stages\":" + deep + "}\n0F0\n"),
            "row 1: metadata: nested more than 16 levels deep");
}

// Each of them would take hours if the reader looked at its text more than a few times.
TEST(TextFormatTest, AMillionCellsOfGarbageAreRefusedWithTheFirstOfThem) {
  std::string garbage, ops_then_garbage;
  for (int i = 0; i < 1000000; ++i) {
    garbage += "garbage,";
    ops_then_garbage += "0F1,";
  }
  EXPECT_EQ(refusal(garbage),
            "row 1, column 1: 'garbage': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal(ops_then_garbage + "garbage"),
            "row 1, column 1000001: 'garbage': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal(std::string(1000000, ',')),
            "row 1: no ops found: a schedule has one row of ops per device");
  EXPECT_EQ(refusal(std::string(1000000, '\n') + "x"),
            "row 1000001, column 1: 'x': an op starts with its stage number, as in 2F0");
  EXPECT_EQ(refusal(std::string(1000000, '(')),
            "row 1, column 1: '" + std::string(40, '(') +
                "...': a group is written (0F4;7B2)OVERLAP_F_B");
  EXPECT_EQ(refusal(std::string(1000000, '9')),
            "row 1, column 1: '" + std::string(40, '9') +
                "...': stage number is too large (at most 1048575)");
}

TEST(TextFormatTest, TorchTextRefusesWhatPyTorchCannotHold) {
  EXPECT_EQ(
      torch_refusal("0F0.0,0F0.1,0B0.1,0B0.0\n"),
      "torch-csv cannot hold custom: it has 2 slices, and PyTorch's format has none; use csv");
  EXPECT_EQ(torch_refusal("0F0@0,0F1@1\n"),
            "torch-csv cannot hold custom: it has 2 pipes, and PyTorch's format has none; use csv");
  EXPECT_EQ(torch_refusal("0F0,0B0,0UPDATE\n"),
            "torch-csv cannot hold custom: PyTorch's format has no UPDATE; use csv");
  EXPECT_EQ(torch_refusal("0UNSHARD,0F0,(0F1;0B0)OVERLAP_F_B,0B1,0REDUCE_GRAD\n"), "");
}

}  // namespace
}  // namespace sluice
