// A schedule of windows without end: how it begins, and the window that it repeats from then on.
//
// A device's program is cut behind its updates: part w ends with UPDATE<w>. Between two parts lies
// a joint, which every device reaches with the same updates made. What is under way there
// (microbatches of later windows, messages between devices) is the state of the joint. If two
// joints have the same state, counted from the window that comes next, and the parts between them
// and behind them are the same, then so are all that follow: a run of any length is made of what
// was proved.
#pragma once

#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

class EndlessSchedule {
 public:
  // From a lowered and proved schedule of several windows. Throws UserError where ops come behind
  // the update of their window, where an op needs one of a later part, where the updates of a
  // device are not together, or where no window repeats.
  explicit EndlessSchedule(Schedule windows);

  // Ops of a device between the updates before window `window`'s and its own, these included, in a
  // run of `count` windows; microbatches and windows are numbered through.
  Program part(int device, int window, int count) const;
  // Ops of windows from `window` on that lie in earlier parts: what a run that begins there has to
  // catch up on, part by part; `part` is the number of each.
  struct Early {
    int part;
    Op op;
  };
  std::vector<Early> early(int device, int window, int count) const;
  // Receives of a device behind the joint before part `window` whose sends lie before it.
  Program under_way(int device, int window, int count) const;
  // All windows of a run as one schedule.
  Schedule whole(int count) const;

  int window_size() const { return schedule_.window_size(); }
  // The window from which on they repeat, and how many parts before its own a window begins.
  int head() const { return head_; }
  int ahead() const { return ahead_; }

 private:
  // By device, its ops, their windows counted from the part's.
  using Part = std::vector<Program>;

  void cut();
  class PartOf;
  void check_edges();
  bool needs_later(const Op& op, int part, const PartOf& part_of) const;
  void find_period();
  bool gives_back(const Schedule& given) const;
  void check_ends() const;
  Op relative(Op op, int window) const;
  Op absolute(Op op, int window) const;
  const Program& relative_part(int device, int window) const;

  Schedule schedule_;
  std::vector<Part> parts_;  // by window; of the schedule given
  int head_ = 0, ahead_ = 0;
};

}  // namespace sluice
