// What cuDNN prepares before the first step of a rank that trains on packed documents on a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/data/dataset.h"
#include "sluice/model/stage.h"

namespace sluice {

struct AttentionPlans {
  int count = 0;                           // of forwards and backwards
  std::int64_t shortest = 0, longest = 0;  // tokens of a call
  double seconds = 0;

  std::string line() const;  // "cuDNN: 66 plans for ..."
};

// Makes the plans of all calls that long documents of the data can need (model/attention_packed.h),
// for the calling thread; none where there is no GPU or no such document. Waits for the GPU.
AttentionPlans make_attention_plans(const RunPlan& plan, const Machine& machine,
                                    const Dataset& data);

}  // namespace sluice
