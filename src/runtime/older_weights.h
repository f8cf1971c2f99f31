// Weights as they were before the last updates, of the stages that this rank updates. Where steps
// overlap, the forwards of the next steps that a run had computed with them are computed again when
// it is resumed; so a checkpoint holds them.
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <string>
#include <vector>

#include "sluice/model/parameter.h"
#include "sluice/run/plan.h"

namespace sluice {

class OlderWeights {
 public:
  // Of these parameters, at most `most` updates back.
  OlderWeights(std::vector<Parameter*> parameters, int most)
      : parameters_(std::move(parameters)), most_(most) {}

  int most() const { return most_; }
  // Before an update: copies the weights if `keeps`, else forgets all.
  void before_update(bool keeps);
  // Copies what is in place, too: what was predicted of that update.
  void keep_prediction();

  struct Entry {
    const Parameter* parameter = nullptr;
    std::string name;  // "head.weight/before-1": before the last update
    at::Tensor value;
  };
  std::vector<Entry> entries() const;

 private:
  std::vector<Parameter*> parameters_;
  int most_;
  std::vector<at::Tensor> copies() const;  // of what is in place

  std::deque<std::vector<at::Tensor>> kept_;  // the newest first
  std::vector<at::Tensor> predicted_;         // empty: nothing was
};

// The updates back from which a run that is resumed needs the weights: forwards that run before the
// update of the step before, and all of a step that uses the weights before that one.
int num_older(const RunPlan& plan);

// The name of a parameter as it was so many updates ago, at least one.
std::string older_name(const std::string& parameter, int updates_ago);
// The name of what forwards used for it that ran before the last update, where that was predicted.
std::string predicted_name(const std::string& parameter);

}  // namespace sluice
