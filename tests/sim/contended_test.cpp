// The simulator with devices that are faster while others are idle.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "sluice/base/error.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/golden.h"

namespace sluice {
namespace {

// Relative, and for times about 0 absolute in units of a unit op.
void expect_near(double a, double b, const char* what) {
  EXPECT_NEAR(a, b, 1e-9 * std::max(1.0, std::abs(b))) << what;
}

using MessageKey = std::tuple<int, int, int, int, OpKind, int>;

MessageKey key_of(const Op& op, int to) {
  return {op.pipe, op.stage, op.microbatch, op.slice, op.kind, to};
}

// Each tensor that travels, by what it is of and where it goes: players differ in the order in
// which they list them.
std::map<MessageKey, Message> messages_of(const Timeline& timeline) {
  std::map<MessageKey, Message> out;
  for (const Message& message : timeline.messages) {
    EXPECT_TRUE(out.try_emplace(key_of(message.op, message.to), message).second);
  }
  return out;
}

void expect_same(const Simulation& a, const Simulation& b) {
  expect_near(a.makespan, b.makespan, "makespan");
  expect_near(a.span, b.span, "span");
  expect_near(a.ideal, b.ideal, "ideal");
  expect_near(a.bubble, b.bubble, "bubble");
  expect_near(a.exposed_reduction, b.exposed_reduction, "exposed reduction");
  EXPECT_EQ(a.max_peak, b.max_peak);
  EXPECT_EQ(a.max_peak_bytes, b.max_peak_bytes);
  ASSERT_EQ(a.timeline.devices.size(), b.timeline.devices.size());
  for (std::size_t d = 0; d < a.timeline.devices.size(); ++d) {
    const DeviceTimeline &x = a.timeline.devices[d], &y = b.timeline.devices[d];
    ASSERT_EQ(x.spans.size(), y.spans.size());
    for (std::size_t i = 0; i < x.spans.size(); ++i) {
      ASSERT_EQ(a.timeline.text(x.spans[i].op), b.timeline.text(y.spans[i].op));
      expect_near(x.spans[i].start, y.spans[i].start, "start");
      expect_near(x.spans[i].end, y.spans[i].end, "end");
    }
    ASSERT_EQ(x.memory.size(), y.memory.size());
    for (std::size_t i = 0; i < x.memory.size(); ++i) {
      expect_near(x.memory[i].time, y.memory[i].time, "time of memory");
      EXPECT_EQ(x.memory[i].value, y.memory[i].value);
    }
    ASSERT_EQ(x.reductions.size(), y.reductions.size());
    for (std::size_t i = 0; i < x.reductions.size(); ++i) {
      EXPECT_EQ(x.reductions[i].span, y.reductions[i].span);
      expect_near(x.reductions[i].start, y.reductions[i].start, "start of a reduction");
      expect_near(x.reductions[i].end, y.reductions[i].end, "end of a reduction");
    }
    expect_near(x.busy, y.busy, "busy");
    EXPECT_EQ(x.peak, y.peak);
  }
  const auto ours = messages_of(a.timeline), theirs = messages_of(b.timeline);
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [key, message] : ours) {
    const Message& other = theirs.at(key);
    EXPECT_EQ(message.span, other.span);
    expect_near(message.start, other.start, "start of a message");
    expect_near(message.end, other.end, "end of a message");
  }
}

// Calls visit(schedule) for schedules of every generator and several sizes.
template <class Visit>
void for_every_schedule(Visit visit) {
  int seen = 0;
  for (const Generator* generator : all_generators())
    for (const int p : {1, 2, 4, 6})
      for (const int m : {1, p, 2 * p + 1, 2 * p + 2})
        for (const int v : {1, 2})
          for (const int k : {1, 3}) {
            GeneratorOptions options;
            options.devices = p;
            options.microbatches = m;
            options.stages_per_device = v;
            options.slices = k;
            if (generator->knobs.memory_cap) options.memory_cap = 1.5 * p;
            if (generator->knobs.block)
              options.block = {"v-half", test::read_text(std::string(SLUICE_SOURCE_DIR) +
                                                         "/examples/block-v-half.toml")};
            SCOPED_TRACE(fmt::format("{} p={} m={} v={} k={}", generator->name, p, m, v, k));
            std::optional<Schedule> schedule;
            try {
              schedule = generate_schedule(*generator, options);
            } catch (const UserError&) {
              continue;  // these sizes are none of this generator's
            }
            visit(*schedule);
            ++seen;
            if (testing::Test::HasFailure()) return;
          }
  EXPECT_GT(seen, 500);
}

// Unequal stages and slices, messages with latency and bandwidth, reductions, groups that overlap.
Costs uneven_costs(const Schedule& schedule) {
  Costs costs = unit_costs(schedule, {1, 1.25, 0.75}, 0.3, 1);
  for (int stage = 0; stage < costs.num_stages(); ++stage)
    for (int slice = 0; slice < costs.num_slices(); ++slice) {
      OpCosts& op = costs.at(stage, slice);
      op.f += 0.1 * (stage % 3) + 0.05 * slice;
      op.sent_forward = 2;
      op.sent_backward = 1;
      op.kv = 0.5;
    }
  costs.default_link.bytes_per_time = 10;
  costs.reduce.assign(static_cast<std::size_t>(schedule.num_stages()), 3);
  costs.data_link = {0.2, 4};
  costs.overlap = 0.5;
  costs.measured = true;
  return costs;
}

TEST(Contention, OfOnesChangesNothing) {
  for_every_schedule([](const Schedule& plain) {
    const Schedule reduced = add_reductions(plain);
    for (const Schedule& schedule : {plain, reduced, validate(reduced).lowered})
      for (Costs costs : {unit_costs(schedule, {1, 1, 1}, 0, 1), uneven_costs(schedule)}) {
        const Simulation free = simulate(schedule, costs, {.timeline = true});
        costs.contention.assign(schedule.programs.size(), 1);
        expect_same(simulate(schedule, costs, {.timeline = true}), free);
        EXPECT_NEAR(simulate(schedule, costs).makespan, free.makespan, 1e-9 * free.makespan);
      }
  });
}

// How many devices compute, from each time on.
std::map<double, int> busy_devices(const Timeline& timeline) {
  std::map<double, int> changes;
  for (const DeviceTimeline& device : timeline.devices)
    for (const Span& span : device.spans) {
      ++changes[span.start];
      --changes[span.end];
    }
  int busy = 0;
  for (auto& [time, count] : changes)
    count = busy += count;
  return changes;
}

// Work that a busy device has done until each change of speed.
class WorkClock {
 public:
  WorkClock(const Timeline& timeline, const std::vector<double>& contention) {
    double work = 0, before = 0, speed = 0;
    for (const auto& [time, busy] : busy_devices(timeline)) {
      work += speed * (time - before);
      done_[time] = work;
      before = time;
      speed = busy > 0 ? contention.at(static_cast<std::size_t>(busy) - 1) : 0;
    }
  }
  double at(double time) const { return done_.at(time); }  // REQUIRES: a start or an end

 private:
  std::map<double, double> done_;
};

std::vector<double> random_contention(std::size_t devices, std::mt19937& random) {
  std::vector<double> out(devices, 1);
  for (std::size_t n = 0; n + 1 < devices; ++n)
    out[n] = std::uniform_real_distribution(0.5, 3.0)(random);
  return out;
}

// What makes a timeline right, whoever made it: every op did its work at the speeds of its time,
// and started the moment its device was free and its last message there.
TEST(Contention, EveryOpDoesItsWorkAtTheSpeedsOfItsTime) {
  std::mt19937 random(1);
  for_every_schedule([&](const Schedule& plain) {
    const Schedule schedule = add_reductions(plain);
    Costs costs = uneven_costs(schedule);
    costs.overlap = 0;
    costs.contention = random_contention(schedule.programs.size(), random);
    const Timeline timeline = simulate(schedule, costs, {.timeline = true}).timeline;
    const WorkClock work(timeline, costs.contention);
    const auto messages = messages_of(timeline);
    std::map<std::pair<int, int>, double> link_free;
    std::map<MessageKey, double> window_ops;  // when each was done
    for (const DeviceTimeline& device : timeline.devices) {
      for (const Reduction& reduction : device.reductions)
        window_ops[key_of(reduction.op, 0)] = reduction.end;
      for (const Span& span : device.spans)
        if (span.op.kind == OpKind::Update) window_ops[key_of(span.op, 0)] = span.end;
    }
    for (const Message& message : timeline.messages) {
      if (has_window(message.op.kind)) {
        EXPECT_EQ(message.start, window_ops.at(key_of(message.op, 0)));
        expect_near(message.end, message.start + 0.3, "end of what an update waits for");
        continue;
      }
      const Span& maker = timeline.devices[static_cast<std::size_t>(message.from)]
                              .spans[static_cast<std::size_t>(message.span)];
      double& free = link_free[{message.from, message.to}];
      EXPECT_GE(message.start, std::max(free, maker.end) - 1e-9);
      free = message.start + (message.op.kind == OpKind::SendF ? 0.2 : 0.1);
      expect_near(message.end, free + 0.3, "end of a message");
    }
    for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
      const DeviceTimeline& device = timeline.devices[d];
      double clock = 0;
      for (const Span& span : device.spans) {
        expect_near(work.at(span.end) - work.at(span.start), costs.duration(span.op), "work");
        double ready = clock;
        for (const Op& input : inputs_of(span.op, schedule)) {
          if (has_window(input.kind)) {
            const bool here = schedule.device_of(input) == static_cast<int>(d);
            ready = std::max(ready, window_ops.at(key_of(input, 0)) + (here ? 0 : 0.3));
            continue;
          }
          const auto kind = input.kind == OpKind::F ? OpKind::SendF : OpKind::SendB;
          Op carrier = input;
          carrier.kind = kind;
          const auto found = messages.find(key_of(carrier, static_cast<int>(d)));
          if (found != messages.end()) ready = std::max(ready, found->second.end);
        }
        EXPECT_GE(span.start, ready - 1e-9);
        // The members of a group wait for each other's inputs, too.
        const bool grouped =
            span.op.joined || (&span != &device.spans.back() && (&span + 1)->op.joined);
        if (!grouped) expect_near(span.start, ready, "start");
        if (span.message >= 0) {
          EXPECT_EQ(timeline.messages[static_cast<std::size_t>(span.message)].end, span.start);
        }
        clock = span.end;
      }
      double link = 0;
      for (const Reduction& reduction : device.reductions) {
        const double ready = device.spans[static_cast<std::size_t>(reduction.span)].end;
        expect_near(reduction.start, std::max(ready, link), "start of a reduction");
        link = reduction.start + 3.0 / 4;
        expect_near(reduction.end, link + 0.2, "end of a reduction");
      }
    }
  });
}

// Where messages take no time, contention only stretches time: the order of everything stays, and
// time with n devices busy passes contention[n-1] times as fast. So faster is never slower there.
// (With messages nothing of the kind is promised: what starts sooner may overlap with more.)
TEST(Contention, WithoutMessagesStretchesTime) {
  std::mt19937 random(2);
  for_every_schedule([&](const Schedule& schedule) {
    Costs costs = uneven_costs(schedule);
    costs.default_link = {};
    costs.reduce.clear();
    costs.overlap = 0;
    const Timeline free = simulate(schedule, costs, {.timeline = true}).timeline;
    costs.contention = random_contention(schedule.programs.size(), random);
    double expected = 0, before = 0;
    int was_busy = 0;
    for (const auto& [time, busy] : busy_devices(free)) {
      if (time - before > 1e-9) {
        expected += (time - before) / costs.contention.at(static_cast<std::size_t>(was_busy) - 1);
      }
      before = time;
      was_busy = busy;
    }
    const double makespan = simulate(schedule, costs).makespan;
    EXPECT_NEAR(makespan, expected, 1e-6 * expected);
    for (std::size_t n = 0; n + 1 < costs.contention.size(); n += 2)
      costs.contention[n] *= 1.5;
    EXPECT_LE(simulate(schedule, costs).makespan, makespan * (1 + 1e-9));
  });
}

Simulation two_devices(std::vector<double> contention, double latency) {
  const Schedule schedule = read_schedule(
      "0F0,0F1,0B0,0B1\n"
      "1F0,1B0,1F1,1B1\n");
  Costs costs = unit_costs(schedule, {1, 1, 1}, latency, 1);
  costs.contention = std::move(contention);
  return simulate(schedule, costs, {.timeline = true});
}

std::vector<double> ends(const Simulation& sim, std::size_t device) {
  std::vector<double> out;
  for (const Span& span : sim.timeline.devices[device].spans)
    out.push_back(span.end);
  return out;
}

// Twice as fast alone:
//   0..0.5    device 0 F0 alone
//   0.5..1.5  device 0 F1, device 1 F0
//   1.5..2.5  device 1 B0 alone, 2 units of work
//   2.5..4.5  device 0 B0; device 1 F1 to 3.5, then half of B1
//   4.5..5    device 1 the rest of B1, alone
//   5..6      device 0 B1 alone
TEST(Contention, OneFOneBByHand) {
  const Simulation sim = two_devices({2, 1}, 0);
  EXPECT_EQ(ends(sim, 0), (std::vector<double>{0.5, 1.5, 4.5, 6}));
  EXPECT_EQ(ends(sim, 1), (std::vector<double>{1.5, 2.5, 3.5, 5}));
  EXPECT_EQ(sim.makespan, 6);
  EXPECT_EQ(sim.devices[0].busy, 0.5 + 1 + 2 + 1);
  EXPECT_EQ(sim.devices[1].busy, 1 + 1 + 1 + 1.5);
  EXPECT_EQ(sim.bubble, 1.5);
  EXPECT_EQ(sim.max_peak, 2);
}

// Messages of 0.75 take that long whatever is busy:
//   0..0.5      device 0 F0 alone; there at 1.25
//   0.5..1      device 0 F1 alone; there at 1.75
//   1.25..1.75  device 1 F0 alone
//   1.75..2.75  device 1 B0 alone; back at 3.5
//   2.75..3.25  device 1 F1 alone
//   3.25..3.5   device 1 0.5 of B1 alone
//   3.5..5      device 0 1.5 of B0, device 1 the rest of B1; back at 5.75
//   5..5.25     device 0 the rest of B0, alone
//   5.75..6.75  device 0 B1 alone
TEST(Contention, MessagesTakeRealTime) {
  const Simulation sim = two_devices({2, 1}, 0.75);
  EXPECT_EQ(ends(sim, 0), (std::vector<double>{0.5, 1, 5.25, 6.75}));
  EXPECT_EQ(ends(sim, 1), (std::vector<double>{1.75, 2.75, 3.25, 5}));
  EXPECT_EQ(sim.makespan, 6.75);
}

// Alone half as fast as together: possible, where what is shared is a cache, and no error.
TEST(Contention, MayBeSlowerAlone) {
  const Simulation sim = two_devices({0.5, 1}, 0);
  EXPECT_EQ(ends(sim, 0), (std::vector<double>{2, 3, 9, 15}));
  EXPECT_EQ(ends(sim, 1), (std::vector<double>{3, 7, 8, 11}));
}

// device 0  F0 alone 0..0.5, F1 with device 1's F0 0.5..1.5, then waits
// device 1  (F1;B0) side by side: 2 + 1/2 = 2.5 units of work, alone to 2.75; then B1 for 2
// device 0  B0 beside B1 to 4.75, then B1 alone to 5.75
TEST(Contention, AGroupRunsAsOne) {
  const Schedule schedule = read_schedule(
      "0F0,0F1,0B0,0B1\n"
      "1F0,(1F1;1B0)OVERLAP_F_B,1B1\n");
  Costs costs = unit_costs(schedule, {1, 1, 1}, 0, 1);
  costs.overlap = 0.5;
  costs.contention = {2, 1};
  const Simulation sim = simulate(schedule, costs, {.timeline = true});
  EXPECT_EQ(ends(sim, 0), (std::vector<double>{0.5, 1.5, 4.75, 5.75}));
  EXPECT_EQ(ends(sim, 1), (std::vector<double>{1.5, 2.75, 2.75, 4.75}));
  EXPECT_EQ(sim.devices[1].busy, 1 + 1.25 + 2);
}

TEST(Contention, IsOfAllDevices) { EXPECT_THROW(two_devices({1.5, 1.2, 1}, 0), InternalError); }

// One GPU in 8 partitions, 1F1B against ZB-V, m = 16, equal times, from barrier to barrier. At
// constant speed it is 69 / 51.5; idle partitions give part of 1F1B's bubble back.
TEST(Contention, EatsUpSomeOfWhatZeroBubbleGains) {
  const auto makespan = [](const char* name, double per_device, std::vector<double> contention) {
    GeneratorOptions options;
    options.devices = 8;
    options.microbatches = 16;
    const Schedule schedule = generate_schedule(name, options);
    const double time = 1 / per_device;
    Costs costs = unit_costs(schedule, {time, time, time}, 0, 1);
    costs.contention = std::move(contention);
    return simulate(schedule, costs).makespan;
  };
  const auto ratio = [&](const std::vector<double>& contention) {
    return makespan("1f1b", 1, contention) / makespan("zb-v", 2, contention);
  };
  std::vector<double> small, large;  // partitions of 8 and of 16 SMs, as measured on an H200;
  // of the small ones with 1 and with 8 busy, the rest on a line
  for (int busy = 1; busy <= 8; ++busy)
    small.push_back((55.1 + (50.5 - 55.1) * (busy - 1) / 7) / 50.5);
  for (const double speed : {108, 109, 108, 103, 93, 85, 78, 74})
    large.push_back(speed / 74);
  EXPECT_NEAR(ratio({}), 69 / 51.5, 1e-9);  // 1.340
  EXPECT_NEAR(ratio(small), 1.3086, 1e-4);
  EXPECT_NEAR(ratio(large), 1.1887, 1e-4);
  // Where one idle partition already gives all there is to gain.
  EXPECT_NEAR(ratio({1.091, 1.091, 1.091, 1.091, 1.091, 1.091, 1.091, 1}), 1.2864, 1e-4);
}

}  // namespace
}  // namespace sluice
