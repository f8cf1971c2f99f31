#include "sluice/schedule/transforms/split_backward.h"

namespace sluice {

Schedule split_backward(const Schedule& schedule) {
  Schedule out = schedule;
  for (Program& program : out.programs) {
    Program split, weights;
    for (std::size_t i = 0; i < program.size(); ++i) {
      Op op = program[i];
      if (op.kind == OpKind::B) {
        op.kind = OpKind::W;
        op.joined = 0;
        weights.push_back(op);
        op.kind = OpKind::I;
        op.joined = program[i].joined;
      }
      split.push_back(op);
      // Members of a group cannot use each other's results, so its W follow the whole group.
      if (i + 1 < program.size() && program[i + 1].joined) continue;
      split.insert(split.end(), weights.begin(), weights.end());
      weights.clear();
    }
    program = std::move(split);
  }
  return out;
}

Schedule fuse_backward(const Schedule& schedule) {
  Schedule out = schedule;
  for (Program& program : out.programs) {
    Program fused;
    for (std::size_t i = 0; i < program.size(); ++i) {
      Op op = program[i];
      if (op.kind == OpKind::I && !op.joined && i + 1 < program.size()) {
        Op weight = op;
        weight.kind = OpKind::W;
        if (program[i + 1] == weight && (i + 2 == program.size() || !program[i + 2].joined)) {
          op.kind = OpKind::B;
          ++i;
        }
      }
      fused.push_back(op);
    }
    program = std::move(fused);
  }
  return out;
}

Schedule pull_weight_gradients(const Schedule& schedule) {
  // Any other W (in a group, or before its I in a schedule that is not valid) stays where it is.
  const auto moves = [](const Program& program, std::size_t i) {
    return program[i].kind == OpKind::W && group_end(program, i) == i + 1 && !program[i].joined;
  };
  Schedule out = schedule;
  for (Program& program : out.programs) {
    std::vector<char> waiting(schedule.num_cells(), 0);
    for (std::size_t i = 0; i < program.size(); ++i)
      if (moves(program, i)) waiting[schedule.cell(program[i])] = 1;
    Program pulled, weights;
    for (std::size_t i = 0; i < program.size(); ++i) {
      Op op = program[i];
      if (moves(program, i) && !waiting[schedule.cell(op)]) continue;
      pulled.push_back(op);
      if (op.kind == OpKind::I && waiting[schedule.cell(op)]) {
        waiting[schedule.cell(op)] = 0;
        op.kind = OpKind::W;
        op.joined = 0;
        weights.push_back(op);
      }
      if (i + 1 < program.size() && program[i + 1].joined) continue;
      pulled.insert(pulled.end(), weights.begin(), weights.end());
      weights.clear();
    }
    program = std::move(pulled);
  }
  return out;
}

}  // namespace sluice
