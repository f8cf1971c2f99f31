// A planned batch as text, JSON or a picture: its microbatches, the groups of ranks that share
// their sequences, how far from the best it can be, and what simpler plans would take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/flexsp/baselines.h"
#include "sluice/plan/flexsp/plan_batch.h"

namespace sluice {

struct BatchReport {
  // What a simpler plan takes; without seconds, a sequence does not fit its groups.
  struct Baseline {
    int degree = 1;
    double fill = 1;  // share of a group's memory up to which it is filled
    std::optional<double> seconds = {};
  };

  flexsp::Cluster cluster;
  std::vector<flexsp::ExcludedDegree> excluded = {};
  std::string source = {};                 // of the lengths
  std::vector<std::int64_t> lengths = {};  // padded
  std::int64_t tokens = 0;                 // without the padding
  std::int64_t dropped = 0;                // sequences that are too long
  std::int64_t truncated = 0;
  std::string strategy = "flex";
  // One of them. Tensor and context parallelism form no groups.
  std::optional<flexsp::PlannedBatch> batch = {};
  std::optional<flexsp::TensorContext> tensor_context = {};
  std::vector<double> bounds = {};  // seconds, of each microbatch with these sequences
  double bound_of_any_cuts = 0;
  double plan_seconds = 0, bounds_seconds = 0;  // that it took to find them
  std::vector<Baseline> fixed = {};
  std::optional<Baseline> batch_ada = {};

  double seconds() const { return batch ? batch->seconds : tensor_context->seconds; }
  std::optional<double> bound() const;  // with these cuts
  std::optional<double> gap() const;    // predicted over bound, less 1
  // Of the predicted time: that of the slowest groups.
  double all_to_all_share() const;
};

std::string batch_text(const BatchReport& report);
// One object (docs/flexsp.md).
std::string batch_json(const BatchReport& report);
std::string batch_svg(const BatchReport& report);

// Milliseconds of one sequence alone, by length (1024 and on, doubling) and degree.
struct DegreeTable {
  struct Row {
    std::int64_t length = 0;
    std::vector<std::optional<double>> seconds;  // by degree; nothing: out of memory
  };
  flexsp::Cluster cluster;
  std::vector<Row> rows;
  std::vector<flexsp::ExcludedDegree> excluded = {};
};

DegreeTable degree_table(const flexsp::Cluster& cluster, std::int64_t longest);
std::string degree_table_text(const DegreeTable& table);
std::string degree_table_json(const DegreeTable& table);

}  // namespace sluice
