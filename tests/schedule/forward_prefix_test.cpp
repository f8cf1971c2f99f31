#include "sluice/schedule/transforms/forward_prefix.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

Schedule lowered(const char* name, int devices, int microbatches, int slices = 1) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.slices = slices;
  return validate(generate_schedule(name, options)).lowered;
}

int forwards_in(const Schedule& schedule, const std::vector<std::size_t>& ends, int device) {
  int found = 0;
  for (std::size_t at = 0; at < ends[static_cast<std::size_t>(device)]; ++at)
    found += schedule.programs[static_cast<std::size_t>(device)][at].kind == OpKind::F;
  return found;
}

TEST(ForwardPrefix, OfGpipeIsAllForwards) {
  const Schedule schedule = lowered("gpipe", 4, 8);
  const auto ends = closed_forward_prefixes(schedule);
  for (int device = 0; device < 4; ++device)
    EXPECT_EQ(forwards_in(schedule, ends, device), 8);
}

TEST(ForwardPrefix, OfOneFOneBIsTheWarmUp) {
  const Schedule schedule = lowered("1f1b", 4, 8);
  const auto ends = closed_forward_prefixes(schedule);
  for (int device = 0; device < 4; ++device)
    EXPECT_EQ(forwards_in(schedule, ends, device), 4 - device);
}

TEST(ForwardPrefix, EndsBeforeAMessageThatIsNotMetInside) {
  // Device 1 takes the second microbatch only after a backward; device 0 may compute it and not
  // send it.
  const Schedule schedule = read_schedule(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_EQ(closed_forward_prefixes(schedule), (std::vector<std::size_t>{3, 2}));
}

TEST(ForwardPrefix, IsClosedForEverySchedule) {
  for (const char* name : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
                           "dualpipe", "dualpipe-v", "looped-bfs", "seq1f1b"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = lowered(name, 4, 16, std::string_view(name) == "seq1f1b" ? 4 : 1);
    const auto ends = closed_forward_prefixes(schedule);
    std::multiset<std::tuple<int, int, int>> sent, received;
    int forwards = 0;
    for (int device = 0; device < 4; ++device) {
      forwards += forwards_in(schedule, ends, device);
      for (std::size_t at = 0; at < ends[static_cast<std::size_t>(device)]; ++at) {
        const Op& op = schedule.programs[static_cast<std::size_t>(device)][at];
        if (op.kind == OpKind::SendF) sent.insert({op.stage, op.microbatch, op.slice});
        if (op.kind == OpKind::RecvF) received.insert({op.stage - 1, op.microbatch, op.slice});
        EXPECT_TRUE(op.kind == OpKind::F || op.kind == OpKind::SendF || op.kind == OpKind::RecvF);
      }
    }
    EXPECT_EQ(sent, received);
    EXPECT_GE(forwards, 8);
  }
}

}  // namespace
}  // namespace sluice
