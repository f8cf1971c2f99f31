#include "sluice/schedule/transforms/forward_only.h"

namespace sluice {

Schedule forward_only(const Schedule& lowered) {
  Schedule out = lowered;
  out.num_windows = 1;
  out.weights = WeightVersions::newest;
  for (Program& program : out.programs) {
    std::erase_if(program, [](const Op& op) {
      return op.kind != OpKind::F && op.kind != OpKind::SendF && op.kind != OpKind::RecvF;
    });
    for (Op& op : program)
      op.joined = 0;
  }
  return out;
}

}  // namespace sluice
