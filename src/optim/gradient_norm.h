// The norm of all gradients, the same to the last bit however the parameters are spread: sums of
// squares over fixed blocks of each named parameter, in fp64, added in one canonical order.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "optim/optimizer.h"

namespace sluice {

// Sum of squares of each block of each gradient, by name.
using BlockSums = std::map<std::string, std::vector<double>>;
BlockSums block_sums(std::span<const Weight> weights);

// What every rank knows after a step: the norm over all ranks' parameters, each name counted once,
// and the sum of `loss` in rank order. Every rank calls it and gets the same bits.
struct StepTotals {
  double gradient_norm = 0;
  double loss = 0;
};
StepTotals total(const BlockSums& mine, double loss, Communicator& world);

}  // namespace sluice
