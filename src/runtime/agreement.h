// What the processes of a run must have in common. Each reads its own configuration, data and
// program, and a run in which they differ would train on and be wrong: so they compare before they
// start.
#pragma once

#include <string>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/data/dataset.h"
#include "sluice/run/plan.h"

namespace sluice {

struct Fact {
  std::string name;   // "optimizer.lr"
  std::string value;  // one line
};

// Every key of the configuration, of a path only whether there is one; the schedule, the data
// (null: none is read), the program, and OMP_NUM_THREADS.
std::vector<Fact> shared_facts(const RunPlan& plan, const Dataset* data);

// Every rank calls it with its own facts. Throws on every rank the same UserError, with each fact
// that differs and who has which value.
void check_same_settings(Communicator& world, const std::vector<Fact>& mine);

}  // namespace sluice
