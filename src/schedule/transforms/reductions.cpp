#include "sluice/schedule/transforms/reductions.h"

#include <map>
#include <set>
#include <utility>

namespace sluice {

Schedule add_reductions(const Schedule& schedule) {
  using StageWindow = std::pair<int, int>;
  Schedule out = schedule;
  for (int d = 0; d < schedule.num_devices(); ++d) {
    Program& program = out.programs[static_cast<std::size_t>(d)];
    std::map<StageWindow, std::size_t> last_gradient;  // position
    std::set<StageWindow> reduced;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const StageWindow of{program[i].stage, schedule.window_of(program[i])};
      if (gives_weight_gradient(program[i].kind)) last_gradient[of] = i;
      if (program[i].kind == OpKind::ReduceGrad) reduced.insert(of);
    }
    std::vector<char> is_last(program.size(), 0);
    for (const auto& [of, position] : last_gradient)
      if (!reduced.contains(of)) is_last[position] = 1;

    Program with;
    for (std::size_t i = 0; i < program.size();) {
      Program reductions;
      const std::size_t end = group_end(program, i);
      for (; i < end; ++i) {
        const Op& op = program[i];
        with.push_back(op);
        if (is_last[i])
          reductions.push_back(
              schedule.window_op(OpKind::ReduceGrad, d, op.stage, schedule.window_of(op)));
      }
      for (; !reductions.empty() && i < program.size() && is_send(program[i].kind); ++i)
        with.push_back(program[i]);
      with.insert(with.end(), reductions.begin(), reductions.end());
    }
    program = std::move(with);
  }
  return out;
}

}  // namespace sluice
