#include "cli/run_trace.h"

#include <algorithm>

#include "cli/output.h"
#include "trace/render.h"

namespace sluice::cli {

void write_trace(const std::string& path, const Schedule& schedule,
                 std::vector<DeviceTimeline> devices) {
  Timeline timeline;
  timeline.name = schedule.name + " (measured)";
  timeline.seconds = timeline.bytes = true;
  timeline.num_stages = schedule.num_stages();
  timeline.num_stages_per_device = schedule.placement.stages_per_device();
  timeline.num_slices = schedule.num_slices;
  timeline.num_pipes = schedule.num_pipes();
  for (const DeviceTimeline& device : devices)
    if (!device.spans.empty())
      timeline.makespan = std::max(timeline.makespan, device.spans.back().end);
  timeline.devices = std::move(devices);
  OutputFlags output;
  output.out = path;
  output.write(path.ends_with(".svg")    ? render_svg(timeline)
               : path.ends_with(".html") ? render_html(timeline)
                                         : render_chrome(timeline));
}

}  // namespace sluice::cli
