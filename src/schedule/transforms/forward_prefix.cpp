#include "sluice/schedule/transforms/forward_prefix.h"

#include <algorithm>

namespace sluice {
namespace {

// Where one output of a stage leaves its device and where it arrives at the other.
struct Way {
  std::size_t from_device = 0, send = 0;
  std::size_t to_device = 0, receive = 0;
};

bool is_forward(OpKind kind) {
  return kind == OpKind::F || kind == OpKind::SendF || kind == OpKind::RecvF;
}

}  // namespace

std::vector<std::size_t> closed_forward_prefixes(const Schedule& lowered) {
  std::vector<Way> ways(lowered.num_cells());
  const auto way_of = [&](Op op) -> Way& {
    if (op.kind == OpKind::RecvF) op.stage = partner_stage(op);
    return ways[lowered.cell(op)];
  };
  std::vector<std::size_t> ends;
  for (std::size_t device = 0; device < lowered.programs.size(); ++device) {
    const Program& program = lowered.programs[device];
    const auto stop = std::find_if(program.begin(), program.end(),
                                   [](const Op& op) { return !is_forward(op.kind); });
    ends.push_back(static_cast<std::size_t>(stop - program.begin()));
    for (std::size_t at = 0; at < program.size(); ++at) {
      if (program[at].kind == OpKind::SendF) {
        way_of(program[at]).from_device = device;
        way_of(program[at]).send = at;
      } else if (program[at].kind == OpKind::RecvF) {
        way_of(program[at]).to_device = device;
        way_of(program[at]).receive = at;
      }
    }
  }
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    for (std::size_t device = 0; device < ends.size(); ++device)
      for (std::size_t at = 0; at < ends[device]; ++at) {
        const Op& op = lowered.programs[device][at];
        if (op.kind == OpKind::F) continue;
        const Way& way = way_of(op);
        if (way.send < ends[way.from_device] && way.receive < ends[way.to_device]) continue;
        ends[device] = at;
        shrunk = true;
      }
  }
  return ends;
}

}  // namespace sluice
