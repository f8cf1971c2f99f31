#include "sluice/trace/around.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sluice/base/text.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

Schedule lowered(const std::string& name, int devices, int microbatches, int slices = 1) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.slices = slices;
  return validate(generate_schedule(name, options)).lowered;
}

std::size_t position_of(const Schedule& schedule, int device, const std::string& text) {
  const Program& program = schedule.programs[static_cast<std::size_t>(device)];
  const auto found = std::find_if(program.begin(), program.end(),
                                  [&](const Op& op) { return schedule.text(op) == text; });
  EXPECT_NE(found, program.end()) << text;
  return static_cast<std::size_t>(found - program.begin());
}

TEST(GridAround, ShowsWhatTheOthersDoAtThatTime) {
  const Schedule schedule = lowered("1f1b", 2, 4);
  EXPECT_EQ("\n" + grid_around(schedule, 1, position_of(schedule, 1, "1B1")), R"(
rank 0  0F0  0F1  .    0B0  0F2  0B1  0F3  0B2  .    0B3
rank 1  .    1F0  1B0  1F1 [1B1] 1F2  1B2  1F3  1B3  .)");
}

TEST(GridAround, MarksTheOpThatAMessageServes) {
  const Schedule schedule = lowered("1f1b", 2, 4);
  const auto grid = [&](int rank, const std::string& text) {
    return grid_around(schedule, rank, position_of(schedule, rank, text));
  };
  EXPECT_EQ(grid(0, "0SEND_F1"), grid(0, "0F1"));
  EXPECT_EQ(grid(1, "1RECV_F2"), grid(1, "1F2"));
  EXPECT_EQ(grid(1, "1SEND_B0"), grid(1, "1B0"));
  EXPECT_EQ(grid(0, "0RECV_B3"), grid(0, "0B3"));
  EXPECT_NE(grid(0, "0B3").find("[0B3]"), std::string::npos);
  EXPECT_EQ(grid_around(schedule, 0, schedule.programs[0].size()).find('['), std::string::npos);
}

TEST(GridAround, StaysSmall) {
  const Schedule schedule = lowered("interleaved-1f1b", 64, 128);
  for (const int rank : {0, 20, 63})
    for (const std::size_t position : {0u, 100u, 700u}) {
      const std::string grid = grid_around(schedule, rank, position);
      EXPECT_EQ(std::count(grid.begin(), grid.end(), '\n'), 15);
      EXPECT_NE(('\n' + grid).find(fmt::format("\nrank {} ", rank)), std::string::npos) << grid;
      EXPECT_EQ(std::count(grid.begin(), grid.end(), '['), 1);
      for (const std::string_view line : split(grid, '\n'))
        EXPECT_LE(line.size(), 100u);
    }
}

TEST(UnitTimes, NoOpStartsBeforeItsInputsAndNoDeviceRunsTwoAtOnce) {
  for (const auto& [name, slices] : {std::pair{"zb-v", 4}, {"dualpipe", 1}, {"v-min", 1}}) {
    SCOPED_TRACE(name);
    const Schedule schedule = lowered(name, 4, 8, slices);
    const auto times = unit_times(schedule);
    std::map<std::string, int> start;  // an I is met by its B
    for (int d = 0; d < 4; ++d) {
      const Program& program = schedule.programs[static_cast<std::size_t>(d)];
      int free = 0;
      for (std::size_t i = 0; i < program.size(); ++i) {
        if (!is_compute(program[i].kind)) continue;
        const int time = times[static_cast<std::size_t>(d)][i];
        EXPECT_GE(time, free);
        free = time + 1;
        Op op = program[i];
        op.joined = 0;
        start[schedule.text(op)] = time;
        if (op.kind == OpKind::B) op.kind = OpKind::I;
        start[schedule.text(op)] = time;
      }
    }
    for (const Program& program : schedule.programs)
      for (const Op& op : program) {
        if (!is_compute(op.kind)) continue;
        for (const Op& input : inputs_of(op, schedule))
          EXPECT_LT(start.at(schedule.text(input)), start.at(schedule.text(op)));
      }
  }
}

}  // namespace
}  // namespace sluice
