// What an optimizer keeps of each weight, and which shard rank updates a matrix that must not be
// divided.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/config.h"
#include "sluice/cost/parameters.h"

namespace sluice {

// Whether Muon updates the weight: the matrices of layers. Embedding and head map between words and
// vectors; they, norms and biases are AdamW's.
bool by_muon(const OptimizerConfig& optimizer, const ParameterShape& parameter);

struct StateKind {
  std::string_view suffix;  // behind the weight's name: "/first_moment"
  NumberType type;
};
// The states of a weight, its master first.
std::vector<StateKind> states_of(const Config& config, const ParameterShape& parameter);
// The bytes that they take for each element.
std::int64_t state_bytes(const Config& config, const ParameterShape& parameter);

// How many matrices of a shape Muon iterates at a time on a GPU; elsewhere it is one.
std::int64_t muon_batch(std::int64_t rows, std::int64_t columns);

// Muon's matrices are dealt to the shard ranks as wholes: of each stage the largest first, to the
// rank that has least. The shard rank by name; a weight that is not named is divided by rows.
class MatrixOwners {
 public:
  MatrixOwners() = default;
  MatrixOwners(const OptimizerConfig& optimizer, int stage,
               std::span<const ParameterShape> parameters, int shards);

  int owner_of(std::string_view name) const {
    const auto found = owners_.find(name);
    return found == owners_.end() ? -1 : found->second;
  }

 private:
  std::map<std::string, int, std::less<>> owners_;
};

}  // namespace sluice
