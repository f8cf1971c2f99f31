// One stage of a run whose steps overlap: the weights that an op uses, and the gradients that it
// adds to. Weights are numbered by the updates made; gradients belong to the window of the op.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>

#include "sluice/model/alternates.h"
#include "sluice/model/stage.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// How old the weights were that the ops of a window computed with, counted as they ran.
struct WindowCounts {
  // By mismatch: (stage, microbatch) pairs; the last entry counts all larger ones, too.
  std::array<std::int64_t, 8> by_mismatch{};
  std::int64_t gradients = 0;  // weight gradients added
  std::int64_t max_delay = 0;
};

class StageVersions {
 public:
  // Moves the stage's weights in place ahead by one update, from what so many updates left.
  using Predict = std::function<void(std::int64_t updates)>;

  // The weights in place are version `updates`, what so many updates left. The stage outlives it.
  // `predict` is for schedules whose weights are predicted; without it those in place are taken for
  // predicted ones.
  StageVersions(Stage& stage, const Schedule& schedule, int accumulators, std::int64_t updates,
                Predict predict = {});

  // Puts in place what an op of the stage needs, and counts it.
  void before(const Op& op, std::int64_t window, WindowCounts& counts);
  // Frees what only this op still needed.
  void after(const Op& op);
  // Puts the newest weights and a window's gradients in place. What predict() made is dropped.
  void settle(std::int64_t window);
  // Puts in place what forwards of the window have used, where they are not done.
  void use_prediction(std::int64_t window);
  // The same of a window that this run does not have: what its forwards would have used.
  void predict(std::int64_t window);
  // The update of a window, around the change of the weights: keeps a copy of those that later ops
  // need; then the gradients are zero again.
  void before_update();
  void after_update();
  // The same update, of a window that was finished before this run began: the gradients here are of
  // later ones.
  void after_past_update();

  std::int64_t updates() const { return updates_; }
  std::int64_t weight_bytes() const {  // of all versions kept
    return static_cast<std::int64_t>(weights_.count()) * weights_.bytes();
  }
  std::int64_t gradient_bytes() const {
    return static_cast<std::int64_t>(gradients_.count()) * gradients_.bytes();
  }

 private:
  // A window's forwards on predicted weights.
  struct Prediction {
    std::int64_t from = 0;      // how many updates had been made
    std::int64_t forwards = 0;  // to come
  };
  // The content of weights_ that holds it.
  static std::int64_t key_of(std::int64_t window) { return -1 - window; }

  std::int64_t version_of_forward(std::int64_t window);
  Prediction& prediction_of(std::int64_t window);
  bool is_used(std::int64_t version) const;
  void drop_before(std::int64_t oldest);
  void drop_unused();

  Stage& stage_;
  WeightVersions rule_;
  std::int64_t updates_;
  std::int64_t oldest_;  // none is older
  int accumulators_;
  Alternates weights_;    // by version
  Alternates gradients_;  // by window mod accumulators
  Predict predict_;
  std::int64_t window_size_;
  std::map<std::int64_t, Prediction> predictions_;  // by window, where forwards are to come
  std::map<std::int32_t, std::int64_t> used_;       // version of each open microbatch's forward
};

}  // namespace sluice
