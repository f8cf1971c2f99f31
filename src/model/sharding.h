// Sharded parameters on a rank (run/sharding.h says what is gathered when). The tensors of a unit
// keep their shapes and views all the time. Only the memory behind them comes and goes, so no layer
// knows of it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/cost/traffic.h"
#include "sluice/model/parameter.h"
#include "sluice/run/sharding.h"

namespace sluice {

// The ranks among which weights are divided; by default none. Both outlive what is made with it.
struct ShardRanks {
  Communicator* ranks = nullptr;
  Traffic* traffic = nullptr;
};

// Memory behind tensors and all views of it.
class WeightMemory {
 public:
  // Takes over what the tensors have.
  explicit WeightMemory(const std::vector<at::Tensor>& tensors);
  void allocate();  // uninitialised
  // The tensors must not be used until allocate().
  void release();

 private:
  std::vector<c10::Storage> storages_;
  std::vector<std::size_t> bytes_;
};

// The parameters of an embedding, a layer or a head. Every shard rank calls the same functions in
// the same order; only what begins with finish blocks.
class ShardedUnit {
 public:
  // Keeps the own rows of the parameters and frees the rest. They outlive it, and so do `shards`.
  // `name` ("layer 3") stands in messages.
  ShardedUnit(std::vector<Parameter>& parameters, const ShardRanks& shards,
              const std::string& name);

  const std::vector<KeptParameter>& kept() const { return kept_; }

  // All rows of the values, until drop(). Both do nothing where they are there already.
  void begin_gather();
  void finish_gather();
  void drop();

  // Gradients of all rows, zero, to be added to.
  void open_gradients();
  // Frees them; the own rows of their sum over the ranks are on their way.
  void begin_sum();
  // Adds that to the own gradients.
  void finish_sum();
  void zero_gradients() { own_gradients_.zero_(); }

 private:
  enum class State { dropped, arriving, whole };

  int size() const { return shards_.ranks->size(); }
  int rank() const { return shards_.ranks->rank(); }
  RowRange rows_of(const Parameter& parameter, int rank) const;
  // Elements of a rank's rows of all parameters.
  std::int64_t count_of(int rank) const;
  // A rank's rows of each parameter's value or gradient, and where they lie in a message.
  template <typename Visit>
  void each(int rank, at::Tensor Parameter::*tensor, const at::Tensor& packed,
            const Visit& visit) const;
  void post(const std::vector<at::Tensor>& sent, const std::vector<at::Tensor>& pieces,
            TrafficClass traffic, const std::string& label, std::vector<Request>& requests);

  std::vector<Parameter>& parameters_;
  ShardRanks shards_;
  std::string values_label_, gradients_label_;
  WeightMemory values_, gradients_;        // of all rows
  at::Tensor own_values_, own_gradients_;  // packed
  std::vector<KeptParameter> kept_;        // views of them
  State state_ = State::dropped;
  // By rank; requests are destroyed first.
  std::vector<at::Tensor> arriving_, sent_, pieces_;
  std::vector<Request> gather_, sum_;
};

using ShardedUnits = std::vector<std::unique_ptr<ShardedUnit>>;

// An op on its way through the units of a stage. While one is in use, the next is gathered and the
// gradients of the one before are summed.
class UnitWalk {
 public:
  // With no units it does nothing. `keep` leaves gathered what is gathered.
  UnitWalk(ShardedUnits& units, std::vector<UnitUse> uses, bool keep)
      : units_(units), uses_(std::move(uses)), keep_(keep) {}

  // For evaluation, which adds to none.
  void without_gradients() {
    for (UnitUse& use : uses_)
      use.gradients = false;
  }
  // Ends the use of one unit and makes the next ready: once before each.
  void next();
  // Ends the use of the last. REQUIRES: next() was called for each.
  void finish();
  // Joins the other ranks in all of this, with nothing to compute.
  void pass();

 private:
  void leave();

  ShardedUnits& units_;
  std::vector<UnitUse> uses_;
  bool keep_;
  std::size_t begun_ = 0;  // uses; the last of them is in use
  ShardedUnit* summing_ = nullptr;
};

}  // namespace sluice
