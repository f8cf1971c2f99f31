#include "sluice/schedule/generators/asynchronous/slot_order.h"

#include <algorithm>
#include <utility>

#include "sluice/base/error.h"
#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/transforms/split_backward.h"

namespace sluice::generators {
namespace {

// Order A runs d/2 pipes, the even ones down the devices, the odd ones up, each begun two devices
// further. Two microbatches of each pipe make a block.
int device_of_a(int devices, int pipe, int stage) {
  const int device = pipe % 2 == 0 ? 2 * pipe + stage : 2 * pipe + 1 - stage;
  return ((device % devices) + devices) % devices;
}

// The slots of A, for d devices and K pipes, `offset` later in each pipe.
void set_slots_of_a(SlotOrder& order, int devices, std::vector<int> offset) {
  const int pipes = static_cast<int>(offset.size());
  order.block = 2 * pipes;
  order.period = 2 * devices;
  const auto start = [pipes, devices, offset = std::move(offset)](int microbatch) {
    const int x = microbatch / pipes;
    return 2 * (x % 2) + std::int64_t{2} * devices * (x / 2) +
           offset[static_cast<std::size_t>(microbatch % pipes)];
  };
  order.forward = [start](int stage, int microbatch) { return start(microbatch) + stage; };
  order.backward = [start, devices](int stage, int microbatch) {
    return start(microbatch) + 2 * devices - 1 - stage;
  };
}

std::vector<std::vector<int>> placement_of_a(int devices, int pipes) {
  std::vector<std::vector<int>> placement(static_cast<std::size_t>(pipes));
  for (int pipe = 0; pipe < pipes; ++pipe)
    for (int stage = 0; stage < devices; ++stage)
      placement[static_cast<std::size_t>(pipe)].push_back(device_of_a(devices, pipe, stage));
  return placement;
}

struct PlacedOp {
  std::int64_t slot;
  Op op;
};
using PlacedProgram = std::vector<PlacedOp>;

std::vector<PlacedProgram> lay_out(const SlotOrder& order, int microbatches) {
  std::vector<PlacedProgram> devices(static_cast<std::size_t>(order.placement.num_devices()));
  for (int m = 0; m < microbatches; ++m) {
    const int pipe = m % order.placement.num_pipes();
    for (int stage = 0; stage < order.placement.num_stages(); ++stage) {
      const int device = order.placement.device_of(pipe, stage);
      PlacedProgram& program = devices[static_cast<std::size_t>(device)];
      program.push_back({order.forward(stage, m), make_op(OpKind::F, stage, m, 0, pipe)});
      program.push_back({order.backward(stage, m), make_op(OpKind::B, stage, m, 0, pipe)});
    }
  }
  for (PlacedProgram& program : devices) {
    std::sort(program.begin(), program.end(),
              [](const PlacedOp& a, const PlacedOp& b) { return a.slot < b.slot; });
    for (std::size_t i = 1; i < program.size(); ++i)
      SLUICE_CHECK(program[i - 1].slot < program[i].slot, "order {}: slot {} is taken twice",
                   order.name, program[i].slot);
  }
  return devices;
}

void put_outer_forwards_first(std::vector<PlacedProgram>& devices, std::int64_t period) {
  for (std::size_t device = 0; device < devices.size(); ++device) {
    if (device % 4 != 0 && device % 4 != 3) continue;
    PlacedProgram& program = devices[device];
    for (std::size_t i = 1; i < program.size(); ++i)
      if (program[i].slot % period == 2 && program[i - 1].slot % period == 1 &&
          program[i].op.kind == OpKind::F && program[i - 1].op.kind == OpKind::B)
        std::swap(program[i - 1].op, program[i].op);
  }
}

}  // namespace

SlotOrder order_a(int devices) {
  SlotOrder order;
  order.name = "A";
  order.placement = Placement::custom(devices, placement_of_a(devices, devices / 2));
  set_slots_of_a(order, devices, std::vector<int>(static_cast<std::size_t>(devices / 2), 0));
  order.update_slot = devices;
  return order;
}

SlotOrder order_t(int devices) {
  const int pipes = devices / 2, down = (pipes + 1) / 2;
  std::vector<std::vector<int>> placement(static_cast<std::size_t>(pipes));
  std::vector<int> offset;
  for (int pipe = 0; pipe < pipes; ++pipe) {
    const bool is_down = pipe < down;
    for (int stage = 0; stage < devices; ++stage)
      placement[static_cast<std::size_t>(pipe)].push_back(is_down ? stage : devices - 1 - stage);
    offset.push_back(is_down ? 4 * pipe : 4 * (pipe - down) + (devices % 4 == 2 ? 2 : 0));
  }
  SlotOrder order;
  order.name = "T";
  order.placement = Placement::custom(devices, std::move(placement));
  set_slots_of_a(order, devices, std::move(offset));
  order.update_slot = devices;
  return order;
}

SlotOrder order_r(int devices) {
  const int even = devices + devices % 2, pipes = even / 2;
  std::vector<std::vector<int>> placement(static_cast<std::size_t>(pipes));
  for (int pipe = 0; pipe < pipes; ++pipe)
    for (int stage = 0; stage < devices; ++stage)
      placement[static_cast<std::size_t>(pipe)].push_back((2 * pipe + stage) % devices);
  // The stages of a pipe that lie behind the last device begin one slot later where d is odd.
  const auto place = [devices, even, pipes](int stage, int microbatch) {
    return stage + (2 * (microbatch % pipes) + stage >= devices ? even - devices : 0);
  };
  SlotOrder order;
  order.name = "R";
  order.placement = Placement::custom(devices, std::move(placement));
  order.block = pipes;
  order.period = even;
  order.update_slot = even;
  order.forward = [=](int stage, int microbatch) {
    return place(stage, microbatch) + std::int64_t{even} * (microbatch / pipes);
  };
  order.backward = [=](int stage, int microbatch) {
    return 2 * even - 1 - place(stage, microbatch) + std::int64_t{even} * (microbatch / pipes);
  };
  return order;
}

SlotOrder order_rounded_a(int devices) {
  const int rounded = (devices + 3) / 4 * 4;
  const SlotOrder whole = order_a(rounded);
  const int pipes = whole.placement.num_pipes();
  // Per pipe: of each stage that is left, its number in the order of `rounded` devices.
  std::vector<std::vector<int>> placement(static_cast<std::size_t>(pipes)), number(placement);
  for (int pipe = 0; pipe < pipes; ++pipe)
    for (int stage = 0; stage < rounded; ++stage)
      if (const int device = whole.placement.device_of(pipe, stage); device < devices) {
        placement[static_cast<std::size_t>(pipe)].push_back(device);
        number[static_cast<std::size_t>(pipe)].push_back(stage);
      }
  const auto renumbered = [number, pipes](const SlotOrder::Slot& slot) {
    return [number, pipes, slot](int stage, int microbatch) {
      return slot(
          number[static_cast<std::size_t>(microbatch % pipes)][static_cast<std::size_t>(stage)],
          microbatch);
    };
  };
  SlotOrder order = whole;
  order.name = "rounded-A";
  order.placement = Placement::custom(devices, std::move(placement));
  order.forward = renumbered(whole.forward);
  order.backward = renumbered(whole.backward);
  return order;
}

SlotOrder order_one_pipe(int devices) {
  SlotOrder order;
  order.name = "1f1b";
  order.placement = Placement::linear(devices);
  order.block = 1;
  order.period = 2;
  order.update_slot = 2 * devices - 2;
  order.forward = [](int stage, int microbatch) { return stage + std::int64_t{2} * microbatch; };
  order.backward = [devices](int stage, int microbatch) {
    return 2 * devices - 1 - stage + std::int64_t{2} * microbatch;
  };
  return order;
}

Program updates_of(const Schedule& schedule, int device, int window) {
  Program updates;
  for (const int stage : schedule.placement.held_by(device))
    updates.push_back(schedule.window_op(OpKind::Update, device, stage, window));
  std::stable_partition(updates.begin(), updates.end(),
                        [&](const Op& op) { return schedule.owner_of(op.stage) == device; });
  return updates;
}

Schedule schedule_from_slots(const SlotOrder& order, const Windows& windows) {
  SLUICE_CHECK(windows.microbatches % order.block == 0, "{} microbatches in blocks of {}",
               windows.microbatches, order.block);
  Schedule schedule;
  schedule.placement = order.placement;
  schedule.num_windows = windows.count;
  schedule.num_microbatches = windows.count * windows.microbatches;
  std::vector<PlacedProgram> devices = lay_out(order, schedule.num_microbatches);
  if (order.outer_first) put_outer_forwards_first(devices, order.period);
  const std::int64_t slots = order.period * (windows.microbatches / order.block);
  for (int device = 0; device < schedule.placement.num_devices(); ++device) {
    Program& program = schedule.programs.emplace_back();
    int window = 0;
    const auto update = [&] {
      for (const Op& op : updates_of(schedule, device, window))
        program.push_back(op);
      ++window;
    };
    for (const PlacedOp& placed : devices[static_cast<std::size_t>(device)]) {
      while (window + 1 < windows.count && placed.slot >= slots * (window + 1) + order.update_slot)
        update();
      program.push_back(placed.op);
    }
    while (window < windows.count)
      update();
  }
  schedule = add_reductions(schedule);
  return windows.split ? split_backward(schedule) : schedule;
}

}  // namespace sluice::generators
