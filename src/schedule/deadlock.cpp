#include "sluice/schedule/deadlock.h"

#include "sluice/base/error.h"

namespace sluice {

void report_deadlocks(const std::vector<Waiting>& devices, std::vector<Problem>& problems) {
  std::vector<std::size_t> mark(devices.size(), 0);
  for (std::size_t start = 0; start < devices.size(); ++start) {
    std::size_t d = start;
    while (devices[d].on >= 0 && mark[d] == 0) {
      mark[d] = start + 1;
      d = static_cast<std::size_t>(devices[d].on);
    }
    if (devices[d].on < 0 || mark[d] != start + 1) continue;
    std::string line = "deadlock: " + devices[d].line;
    for (auto e = static_cast<std::size_t>(devices[d].on); e != d;
         e = static_cast<std::size_t>(devices[e].on))
      line += "; " + devices[e].line;
    problems.push_back({static_cast<int>(d), static_cast<int>(devices[d].position), devices[d].op,
                        std::move(line)});
  }
  SLUICE_CHECK(!problems.empty(), "stuck, but nothing is missing and nobody waits in a circle");
}

}  // namespace sluice
