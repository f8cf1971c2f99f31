// Orders that repeat for ever, given by slots: what every asynchronous schedule is made of. Each
// forward and backward has a slot, no two of a device have the same, and a device runs its ops by
// ascending slot. An update has a slot, too, so that which weights an op uses does not depend on
// timing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice::generators {

struct SlotOrder {
  // The slot of a stage's op of a microbatch, in the microbatch's own pipe.
  using Slot = std::function<std::int64_t(int stage, int microbatch)>;

  std::string name;  // as messages call it
  Placement placement;
  int block = 1;            // microbatches after which the slots repeat
  std::int64_t period = 0;  // slots of a block
  // The update of a window comes before the first op at or behind this slot of the next window's
  // first block: all gradients of the window lie before it.
  std::int64_t update_slot = 0;
  Slot forward, backward;
  // Devices 0 and 3 of every four run the forward at slot 2 of a block before the backward at slot
  // 1: three microbatches in flight at the border of blocks.
  bool outer_first = false;
};

// The orders of AMDP on d devices, each with the slot of its update where a user gives none.
SlotOrder order_a(int devices);  // d % 4 == 0
SlotOrder order_r(int devices);
SlotOrder order_t(int devices);          // even d
SlotOrder order_rounded_a(int devices);  // A of the next multiple of four, devices removed
SlotOrder order_one_pipe(int devices);   // 1F1B that goes on

// What a window's updates look like in the programs.
struct Windows {
  int count = 1;
  int microbatches = 1;  // of each
  bool split = true;     // B as I, W
};

// The programs of all windows: ops by slot, gradients reduced behind the last of each stage and
// window, updates at their slots (the last window's at the end), of a device's own stage first.
// REQUIRES: window.microbatches is a multiple of the block.
Schedule schedule_from_slots(const SlotOrder& order, const Windows& windows);

// The updates that a device runs together: of the stage that it owns, then of the others it holds.
Program updates_of(const Schedule& schedule, int device, int window);

}  // namespace sluice::generators
