// What every schedule generator takes and says about itself. A generator is a pure function from
// options to a compute-only Schedule; other layers add communication, prices and pictures.
//
// To add a schedule: write one file that defines a `const Generator`, add its row in registry.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/amdp_order.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// Times of one stage's op on a whole microbatch, in any unit.
struct OpTimes {
  double f = 1;
  double i = 1;
  double w = 1;
};

// A building block as TOML, and the name to call it by in messages.
struct BlockText {
  std::string name;
  std::string text;
};

// Stage-activations that a device may hold: one number for all devices, or one for each.
class MemoryCap {
 public:
  MemoryCap(double of_all) : caps_{of_all} {}
  MemoryCap(std::vector<double> of_each) : caps_(std::move(of_each)) {}

  std::size_t size() const { return caps_.size(); }
  double of(int device) const { return caps_[size() == 1 ? 0 : static_cast<std::size_t>(device)]; }
  double least() const { return *std::min_element(caps_.begin(), caps_.end()); }
  double most() const { return *std::max_element(caps_.begin(), caps_.end()); }
  bool uniform() const { return least() == most(); }
  std::string text() const;  // "4" or "4,4,3.5"

 private:
  std::vector<double> caps_;
};

// Of schedules that go on from one update of the weights to the next. 0 and none: the generator's
// default.
struct AsynchronousOptions {
  AmdpOrder order = AmdpOrder::automatic;
  int pipes = 0;       // of a frozen order
  int in_flight = 0;   // microbatches of a pipe of a frozen order
  bool fused = false;  // B, not I and W
  int border = 0;      // forwards that an outer device runs ahead where blocks meet: 1 or 2
  int update_slot = 0;
  std::optional<WeightVersions> weights;
  // What the proof allows (staleness.h); -1: anything.
  std::optional<int> max_mismatch, max_delay;
};

struct GeneratorOptions {
  int devices = 0;
  int microbatches = 0;  // of a window, the microbatches of one update of the weights
  int windows = 1;
  AsynchronousOptions asynchronous;
  int stages_per_device = 0;  // 0: the generator's default
  int group_size = 0;         // 0: the generator's default
  int slices = 1;
  std::vector<std::int64_t> slice_sizes;  // tokens of each slice; empty: equal slices
  std::optional<MemoryCap> memory_cap;
  // Whether the error of a cap that is too low says one that would do: finding it takes many times
  // as long as an order.
  bool suggest_cap = true;
  double keep_after_i = 1;  // share of a stage-activation kept between I and W
  // For generators that search: what an op will cost. stage_times, where given, has one entry per
  // stage and wins over times.
  OpTimes times;
  std::vector<OpTimes> stage_times;
  double comm = 0;  // latency of one message between devices
  BlockText block;  // a building block of the user's own

  const OpTimes& times_of(int stage) const {
    return stage_times.empty() ? times : stage_times[static_cast<std::size_t>(stage)];
  }
};

// Options beyond devices and microbatches that a generator reads; the rest are refused if given.
struct Knobs {
  int default_stages_per_device = 1;
  int pipes = 1;                   // each pipe has its own share of a device's stages
  bool stages_per_device = false;  // may differ from the default
  bool group_size = false;
  bool slices = false;
  bool memory_cap = false;  // required where true
  bool block = false;       // required where true
  bool times = false;       // the order depends on what ops cost
  bool windows = false;     // updates the weights itself, window after window
  bool weights = false;     // which of them its ops use is a choice
  bool orders = false;      // has several orders of its own: amdp
};

struct BuildingBlock;

struct Generator {
  std::string_view name;
  std::vector<std::string_view> aliases;  // PyTorch's class names
  std::string_view summary;               // one line
  std::string_view bubble;                // formula, in the words of docs/schedules.md
  std::string_view memory;                // peak stage-activations
  Knobs knobs;
  Schedule (*generate)(const GeneratorOptions&);
  // The building block that it repeats; null where the order does not come from one.
  BuildingBlock (*block)(const GeneratorOptions&) = nullptr;
  // Fills in what asynchronous options leave to it; null where it has none.
  GeneratorOptions (*settle)(const GeneratorOptions&) = nullptr;
};

// A memory cap under which a generator finds no order.
struct CapTooLow : UserError {
  CapTooLow(const std::string& what, MemoryCap enough_cap)
      : UserError(what), enough(std::move(enough_cap)) {}
  MemoryCap enough;  // a cap that can be kept
};

// Every generator, in the order of the table in registry.cpp.
const std::vector<const Generator*>& all_generators();

// By name or alias, case-insensitive. Throws UserError with the nearest name.
const Generator& find_generator(std::string_view name);

// Options that are given and not read, and those that are missing or do not fit: a text for each,
// which calls them by their `field`.
std::vector<std::string> knob_problems(const Generator& generator, const GeneratorOptions& options);

// Checks the options against the generator's knobs and the size limit, fills in defaults and
// generates. Throws UserError with the value, the cause and the remedy, CapTooLow for a cap.
Schedule generate_schedule(const Generator& generator, GeneratorOptions options);
Schedule generate_schedule(std::string_view name, const GeneratorOptions& options);

}  // namespace sluice
