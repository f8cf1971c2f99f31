// What the ranks of a run tell about a step: their times and peaks after every one, their whole
// timelines after the last.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "sluice/comm/mesh.h"
#include "sluice/runtime/executor.h"
#include "sluice/runtime/stage_versions.h"

namespace sluice {

// One rank's figures of a step.
struct RankFigures {
  double start = 0, end = 0, busy = 0;
  double all_to_all = 0;  // seconds
  std::int64_t peak_bytes = 0;
  WindowCounts counts;  // where steps overlap
};

RankFigures figures_of(const ExecutedStep& executed);
// Over all ranks.
WindowCounts counts_of(const std::vector<RankFigures>& ranks);
// The share of a step's span that the busiest rank was idle.
double bubble_of(const std::vector<RankFigures>& ranks);

// Sends every rank's figures to rank 0, which collects them when it reports. No other rank waits.
class FiguresOnTheirWay {
 public:
  explicit FiguresOnTheirWay(Communicator& world) : world_(world) {}

  void post(const RankFigures& mine);
  // The figures of the oldest step; on rank 0 only.
  std::vector<RankFigures> take();
  // Waits until all that this rank has sent has arrived.
  void finish();

 private:
  struct Step {
    std::vector<RankFigures> figures;
    std::vector<Request> requests;
  };
  void reap();

  Communicator& world_;
  std::list<Step> steps_;
};

// The timelines of rank 0's pipeline, on rank 0; nothing elsewhere. Times count from the first op.
std::vector<DeviceTimeline> gather_timelines(const DeviceTimeline& mine, const Mesh& mesh);

}  // namespace sluice
