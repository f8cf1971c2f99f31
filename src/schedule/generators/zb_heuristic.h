// The zero-bubble search for one stage per device: it plays the pipeline forward in time with the
// real op times, places F, I and W where there is room, and never lets a device hold more than a
// limit. O(p m) per setting that it tries.
#pragma once

#include <string>

#include "sluice/schedule/generators/generator.h"

namespace sluice {

// What one microbatch counts on a device against the limit.
struct StashRule {
  double after_f = 1;   // from the start of its F to the end of its I
  double after_i = 1;   // from there to the end of its W; at most after_f
  MemoryCap limit = 1;  // at least after_f

  double held(int in_flight, int pending_w) const {
    return after_f * in_flight + after_i * pending_w;
  }
};

// The published heuristic: the shortest of its eight settings.
Schedule zb_published(std::string name, const GeneratorOptions& options, const StashRule& rule);

// The shortest of the published heuristic and of greedy players. The heuristic does one F and one I
// per round, which wastes most of a device that may hold fewer than p microbatches; the greedy
// players take whatever has arrived.
Schedule zb_under_limit(std::string name, const GeneratorOptions& options, const StashRule& rule);

}  // namespace sluice
