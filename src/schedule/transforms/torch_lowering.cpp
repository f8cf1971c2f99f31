#include "sluice/schedule/transforms/torch_lowering.h"

#include <algorithm>
#include <map>
#include <set>

#include "sluice/schedule/transforms/communication.h"
#include "sluice/schedule/transforms/reductions.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxHeldStages = 3;

// The stages that the compute ops of one program use next, in the order of their first use.
class NextUses {
 public:
  explicit NextUses(const Program& program) : program_(program), again_(program.size(), kNever) {
    std::map<int, std::size_t> first;
    for (std::size_t i = program.size(); i-- > 0;) {
      if (!is_compute(program[i].kind)) continue;
      const auto [use, added] = first.try_emplace(program[i].stage, i);
      if (added) continue;
      again_[i] = use->second;
      use->second = i;
    }
    for (const auto& [stage, position] : first)
      uses_.insert(position);
  }

  // At least three stages, where so many are left. A group counts as a whole.
  std::vector<int> stages() const {
    std::vector<int> out;
    std::size_t end = 0;  // of the group of the use before
    for (const std::size_t position : uses_) {
      if (out.size() >= kMaxHeldStages && position >= end) break;
      if (position >= end) end = group_end(program_, position);
      out.push_back(program_[position].stage);
    }
    return out;
  }

  void pass(std::size_t position) {
    uses_.erase(position);
    if (again_[position] != kNever) uses_.insert(again_[position]);
  }

 private:
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  const Program& program_;
  std::vector<std::size_t> again_;  // per compute op: where its stage is used next
  std::set<std::size_t> uses_;      // per stage: where it is used next
};

Program with_sharding(const Program& program) {
  NextUses next(program);
  std::set<int> held;
  Program out;
  for (std::size_t i = 0; i < program.size();) {
    const std::size_t end = group_end(program, i);
    if (is_compute(program[i].kind)) {
      const std::vector<int> wanted = next.stages();
      for (auto stage = held.begin(); stage != held.end();) {
        if (std::find(wanted.begin(), wanted.end(), *stage) != wanted.end()) {
          ++stage;
          continue;
        }
        out.push_back(make_op(OpKind::Reshard, *stage, -1));
        stage = held.erase(stage);
      }
      for (const int stage : wanted)
        if (held.insert(stage).second) out.push_back(make_op(OpKind::Unshard, stage, -1));
    }
    for (; i < end; ++i) {
      out.push_back(program[i]);
      if (is_compute(program[i].kind)) next.pass(i);
    }
  }
  for (const int stage : held)
    out.push_back(make_op(OpKind::Reshard, stage, -1));
  return out;
}

}  // namespace

Schedule lower_for_torch(const Schedule& schedule) {
  Schedule out = add_reductions(schedule);
  if (!out.has(OpKind::Unshard) && !out.has(OpKind::Reshard))
    for (Program& program : out.programs)
      program = with_sharding(program);
  return out.has_communication() ? out : add_communication(out).schedule;
}

}  // namespace sluice
