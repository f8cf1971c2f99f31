// A schedule, its proof and its price: as a picture, a table of its numbers, or text to read back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/report/pricing.h"
#include "sluice/schedule/generators/block_bound.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/steady.h"
#include "sluice/trace/render.h"

namespace sluice {

// How many pipes keep all devices at work, each with so many microbatches in flight: one goes
// through all stages and back in a round trip, of which a device's own work is a part.
struct PipeAdvice {
  double round_trip = 0;
  int in_flight = 2;
  int pipes = 1;
};

// `simulation` is empty when the schedule is invalid.
struct PricedSchedule {
  Schedule schedule;
  Validation validation;
  std::optional<Simulation> simulation;
  bool seconds = false;             // times are seconds
  std::string model;                // its name; else ""
  OpTimes times;                    // of a stage's ops, with a model
  std::vector<double> contention;   // of the costs
  std::vector<std::string> notes;   // on the costs file
  std::optional<BlockBound> block;  // of a schedule that comes from a building block
  // Of a schedule of several windows.
  std::optional<Staleness> staleness;
  std::optional<SteadyWindow> steady;
  std::optional<PipeAdvice> advice;                 // of amdp
  std::optional<AsynchronousOptions> asynchronous;  // of one that was generated, as settled
  bool describe_block = false;                      // in a line under the grid, too
};

struct PriceRequest {
  Schedule schedule;
  const Pricing& pricing;
  std::int64_t tokens = 0;  // of a sequence, where the user states them; else 0
  int buffers = -1;
  bool timeline = false;
  std::optional<AsynchronousOptions> asynchronous = std::nullopt;  // settled; its bounds are kept
};

// Validates, and where the schedule can run, simulates. Throws UserError for a timeline of millions
// of ops.
PricedSchedule price_schedule(PriceRequest request);

// "8 devices, 16 stages, 16 microbatches; makespan 113 (15.0% idle), span 113, bubble 17 (...),
// ..."
std::string schedule_caption(const PricedSchedule& priced);

// One object, schema 1 (docs/schedule-format.md).
std::string schedule_json(const PricedSchedule& priced, bool timeline);

enum class Format { text, grid, svg, html, chrome, json, csv, torch_csv };

bool draws(Format format);  // needs a timeline

struct RenderOptions {
  bool timeline = false;  // in json, too
  GridOptions grid;
};

// REQUIRES: simulation with a timeline for the formats that draw; not text.
std::string render_schedule(const PricedSchedule& priced, Format format,
                            const RenderOptions& options);

}  // namespace sluice
