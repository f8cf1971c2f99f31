#include "sluice/schedule/transforms/reductions.h"

#include <map>
#include <set>

namespace sluice {

Schedule add_reductions(const Schedule& schedule) {
  Schedule out = schedule;
  for (Program& program : out.programs) {
    std::map<int, std::size_t> last_gradient;  // position, by stage
    std::set<int> reduced;
    for (std::size_t i = 0; i < program.size(); ++i) {
      if (gives_weight_gradient(program[i].kind)) last_gradient[program[i].stage] = i;
      if (program[i].kind == OpKind::ReduceGrad) reduced.insert(program[i].stage);
    }
    std::vector<char> is_last(program.size(), 0);
    for (const auto& [stage, position] : last_gradient)
      if (!reduced.contains(stage)) is_last[position] = 1;

    Program with;
    for (std::size_t i = 0; i < program.size();) {
      Program reductions;
      const std::size_t end = group_end(program, i);
      for (; i < end; ++i) {
        const Op& op = program[i];
        with.push_back(op);
        if (is_last[i]) reductions.push_back(make_op(OpKind::ReduceGrad, op.stage, -1, 0, op.pipe));
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
