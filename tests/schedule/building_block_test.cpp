#include "sluice/schedule/generators/building_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "sluice/base/error.h"
#include "sluice/cost/costs.h"
#include "sluice/schedule/generators/block_bound.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/golden.h"

namespace sluice {
namespace {

std::string example(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR) + "/examples/" + name;
}

GeneratorOptions sized(int devices, int microbatches, int slices = 1) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.slices = slices;
  return options;
}

Schedule from_file(const std::string& path, int devices, int microbatches) {
  GeneratorOptions options = sized(devices, microbatches);
  options.block = {path, test::read_text(path)};
  return generate_schedule("block", options);
}

Simulation at_unit_times(const Schedule& schedule) {
  return simulate(schedule, unit_costs(schedule, {}, 0, 1));
}

// A file that is there as long as the test runs.
class BlockFile {
 public:
  explicit BlockFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("sluice_block_" + std::to_string(std::random_device{}()) + ".toml")) {
    std::ofstream(path_) << text;
  }
  ~BlockFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string error_of(const std::string& text, int devices = 2) {
  const BlockFile file(text);
  try {
    from_file(file.path(), devices, 4);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// A two-device, one-stage block with one part of it replaced.
std::string broken(const std::string& part, const std::string& by) {
  std::string text =
      "period = 3\nplacement = \"linear\"\ndevice = [{F = [0], I = [4], W = [5]}, "
      "{F = [1], I = [2], W = [3]}]\n";
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), by);
}

TEST(UserBlock, VHalfWrittenAsAFileGivesTheBuiltInSchedule) {
  for (int m = 1; m <= 16; ++m) {
    const Schedule built_in = generate_schedule("v-half", sized(4, m));
    const Schedule from_block = from_file(example("block-v-half.toml"), 4, m);
    EXPECT_EQ(from_block.placement, built_in.placement) << m;
    EXPECT_EQ(from_block.programs, built_in.programs) << m;
  }
}

TEST(UserBlock, ZbH1WrittenAsAFileHasItsSpanAndPeak) {
  for (int m = 4; m <= 16; ++m) {
    const Simulation result = at_unit_times(from_file(example("block-zb-h1.toml"), 4, m));
    EXPECT_EQ(result.span, 3 * m + 3) << m;
    EXPECT_EQ(result.max_peak, 4) << m;
  }
}

TEST(UserBlock, FusedOneFOneBHasItsSpanAndPeak) {
  const BlockFile file(
      "period = 3\nplacement = \"linear\"\ndevice = [{F = [0], B = [7]}, {F = [1], B = [5]}, "
      "{F = [2], B = [3]}]");
  const Simulation result = at_unit_times(from_file(file.path(), 3, 7));
  EXPECT_EQ(result.span, 3 * 7 + 3 * 2);
  EXPECT_EQ(result.max_peak, 3);
}

TEST(UserBlock, EveryMistakeIsNamedInOneLine) {
  ASSERT_EQ(error_of(broken("3", "3")), "");
  const struct {
    std::string text, says;
  } cases[] = {
      {broken("period = 3", "period = 2"), "period is 2: device 0 works 3 slots"},
      {broken("period = 3", "period = 3.5"), "period is not a whole number"},
      {broken("period = 3", "period = 0"), "period is 0: needs a whole number from 1"},
      {broken("period = 3", ""), "key 'period' is missing"},
      {broken("period", "perod"), "unknown key 'perod': did you mean 'period'?"},
      {broken("\"linear\"", "\"line\""), "placement is \"line\": needs \"linear\""},
      {broken("\"linear\"", "\"v\""), "device 0: F needs a list of 2 start slots"},
      {broken("I = [4]", "I = [3]"), "device 0: F of chunk 0 (slot 0) and I of chunk 0 (slot 3)"},
      {broken("I = [4]", "I = [2]"), "device 0: I of chunk 0 (slot 2) comes before its input"},
      {broken("W = [5]", "W = [4]"), "device 0: W of chunk 0 (slot 4) comes before its input"},
      {broken("I = [4]", "I = [-4]"), "device 0: I is -4: needs a whole number from 0"},
      {broken("I = [4]", "I = [4000000]"), "device 0: I is 4000000: needs a whole number"},
      {broken("I = [4]", "I = [\"4\"]"), "device 0: I is not a whole number"},
      {broken("I = [4]", "I = 4"), "device 0: I needs a list of 1 start slot,"},
      {broken(", W = [5]", ""), "device 1: its keys differ from device 0's"},
      {broken("W = [5]", "w = [5]"), "device 0: unknown key 'w': did you mean 'W'?"},
      {broken("{F = [0], I = [4], W = [5]}, ", ""), "`devices` is 2: "},
      {broken("[{", "[1, {"), "device needs one table per device"},
      {broken("[5]", "[5"), "not valid TOML"},
  };
  for (const auto& [text, says] : cases) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find(says), std::string::npos) << text << "  -> " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(UserBlock, KeysNestedWithoutEndAreRefused) {
  std::string deep;
  for (int n = 0; n < 200000; ++n)
    deep += "a.";
  EXPECT_NE(error_of(deep + "a = 1\n").find("dots on one line"), std::string::npos);
}

// A random walk of one microbatch through all stages and back, each pass at a slot that is free
// modulo the period.
BuildingBlock random_block(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int p = 1 + below(6);
  const int v = 1 + below(3);
  BuildingBlock block;
  block.placement = below(2) == 0 ? Placement::looped(p, v) : Placement::vee(p, v);
  block.fused = below(3) == 0;
  const int num_stages = p * v;
  // A fused B needs two free slots in a row; room to spare makes sure of them.
  block.period = 3 * v * (block.fused ? 2 : 1) + below(3);
  std::vector<std::vector<bool>> taken(
      static_cast<std::size_t>(p),
      std::vector<bool>(static_cast<std::size_t>(block.period), false));
  const auto place = [&](int stage, int from, int duration) {
    auto& row = taken[static_cast<std::size_t>(block.placement.device_of(0, stage))];
    const auto residue = [&](int slot) { return static_cast<std::size_t>(slot % block.period); };
    int slot = from;
    while (row[residue(slot)] || row[residue(slot + duration - 1)])
      ++slot;
    for (int s = slot; s < slot + duration; ++s)
      row[residue(s)] = true;
    return slot;
  };
  int slot = 0;
  for (int s = 0; s < num_stages; ++s) {
    block.forward.push_back(place(s, slot + below(3), 1));
    slot = block.forward.back() + 1;
  }
  block.backward.resize(static_cast<std::size_t>(num_stages));
  const int duration = block.fused ? 2 : 1;
  for (int s = num_stages - 1; s >= 0; --s) {
    slot = place(s, slot + below(3), duration);
    block.backward[static_cast<std::size_t>(s)] = slot;
    slot += duration;
  }
  if (!block.fused && below(2) == 0)
    for (int s = 0; s < num_stages; ++s)
      block.weight.push_back(
          place(s, block.backward[static_cast<std::size_t>(s)] + 1 + below(4), 1));
  return block;
}

TEST(BuildingBlock, AnyLegalBlockGivesAValidOrderWithinItsLifespans) {
  std::mt19937 random(7);
  for (int n = 0; n < 400; ++n) {
    const BuildingBlock block = random_block(random);
    ASSERT_EQ(block_problem(block), "") << n;
    const int m = 1 + static_cast<int>(random() % 20);
    const int k = 1 + static_cast<int>(random() % 4);
    const Schedule schedule =
        schedule_from_passes("block", block.placement, m, k, order_from_block(block, m, k));
    const Validation validation = validate(schedule);
    ASSERT_TRUE(validation.valid()) << n << ": " << validation.problems[0].line();
    EXPECT_LE(at_unit_times(schedule).max_peak, bound_of(block, schedule).peak + 1e-9) << n;
  }
}

BlockBound bound_of(const char* name, const GeneratorOptions& options) {
  const Generator& generator = find_generator(name);
  return bound_of(generator.block(options), generate_schedule(generator, options));
}

TEST(BlockBound, IsTheExactPeakOfVHalfAndVZbAndOneTooHighForVMinUnlessPMod3Is2) {
  for (int p = 2; p <= 24; ++p) {
    const GeneratorOptions options = sized(p, 2 * p);
    const auto peak = [&](const char* name) {
      return at_unit_times(generate_schedule(name, options)).max_peak;
    };
    EXPECT_EQ(bound_of("v-half", options).peak, peak("v-half")) << p;
    EXPECT_EQ(bound_of("v-zb", options).peak, peak("v-zb")) << p;
    EXPECT_EQ(bound_of("v-min", options).peak, peak("v-min") + (p % 3 == 2 ? 0 : 1)) << p;
    EXPECT_EQ(bound_of("1f1b-v", options).peak, peak("1f1b-v")) << p;
  }
}

TEST(BlockBound, LifespansOfVZbSumTo12PMinus2OnEveryDevice) {
  for (int p = 2; p <= 8; ++p)
    for (const std::vector<int>& lifespans : bound_of("v-zb", sized(p, p)).lifespans)
      EXPECT_EQ(lifespans[0] + lifespans[1], 12 * p - 2) << p;
}

TEST(BlockBound, IsNeverExceededByAnyNumberOfMicrobatchesAndSlices) {
  for (const char* name : {"v-min", "v-half", "v-zb", "1f1b-v"})
    for (int p = 1; p <= 7; ++p)
      for (int m = 1; m <= 3 * p; m += 2)
        for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
                 {1}, {1, 1}, {1, 1, 1}, {5, 3}, {3000, 1000, 96}, {1, 9, 4, 2}}) {
          GeneratorOptions options = sized(p, m, static_cast<int>(sizes.size()));
          if (!find_generator(name).knobs.slices && options.slices > 1) continue;
          options.slice_sizes = sizes;
          const Schedule schedule = generate_schedule(name, options);
          EXPECT_LE(at_unit_times(schedule).max_peak, bound_of(name, options).peak + 1e-9)
              << name << ' ' << p << ' ' << m << ' ' << sizes.size() << ' ' << sizes[0];
        }
}

TEST(VFamily, EveryBlockIsLegalUpTo64Devices) {
  for (const char* name : {"v-min", "v-half", "v-zb", "1f1b-v"})
    for (int p = 1; p <= 64; ++p)
      EXPECT_TRUE(validate(generate_schedule(name, sized(p, 3))).valid()) << name << ' ' << p;
}

TEST(VFamily, WhatIsTooLargeToLayOutIsRefused) {
  EXPECT_THROW(generate_schedule("v-half", sized(1 << 20, 1)), UserError);
  EXPECT_THROW(generate_schedule("1f1b-v", sized(100'000, 10)), UserError);
}

}  // namespace
}  // namespace sluice
