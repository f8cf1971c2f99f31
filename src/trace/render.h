// Pictures of a timeline. Each function is pure: a timeline in, text out.
#pragma once

#include <string>
#include <vector>

#include "sluice/trace/timeline.h"

namespace sluice {

struct GridOptions {
  int width = 100;       // columns before the grid wraps
  bool colour = false;   // ANSI colours
  std::string remedy{};  // said where time is left out: how to see more
};

// For a terminal: one row per device, and one under it for its gradient reductions where there are
// any, time to the right, in bands of the given width. Of a huge
// schedule the first and last devices and bands are shown, and what is missing is said.
std::string render_grid(const Timeline& timeline, const GridOptions& options);

// One picture: the devices' rows over time, a memory curve under each, a legend. Stays below a few
// megabytes: too many ops become average colours, which the caption then says.
std::string render_svg(const Timeline& timeline);

// One self-contained page (no network): zoom, pan, hover, bubble and memory per device. Holds the
// first million ops in time; the page says if there are more.
std::string render_html(const Timeline& timeline);

// Chrome trace JSON for Perfetto: separate tracks for compute, send, receive, gradient reduction;
// memory counters; an arrow per message. Throws UserError for more than a million ops.
std::string render_chrome(const Timeline& timeline);

// A schedule by its makespan and its peak memory, both relative to a reference.
struct ComparisonPoint {
  std::string name;
  double makespan = 1;
  double peak = 1;
};

// Every schedule as a labelled point, the frontier drawn. `reference` is the name that the axes
// refer to; its point, where there is one, stands out.
std::string render_comparison_svg(const std::string& title, const std::string& reference,
                                  const std::vector<ComparisonPoint>& points);

}  // namespace sluice
