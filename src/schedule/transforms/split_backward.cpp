#include "schedule/transforms/split_backward.h"

namespace sluice {

Schedule split_backward(const Schedule& schedule) {
  Schedule out = schedule;
  for (Program& program : out.programs) {
    Program split;
    for (Op op : program) {
      if (op.kind != OpKind::B) {
        split.push_back(op);
        continue;
      }
      op.kind = OpKind::I;
      split.push_back(op);
      op.kind = OpKind::W;
      op.joined = split.back().joined;
      split.push_back(op);
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

}  // namespace sluice
