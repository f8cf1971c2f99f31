#include "sluice/plan/flexsp/milp.h"

#include <coin/Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "sluice/base/error.h"
#include "sluice/plan/flexsp/buckets.h"
#include "sluice/plan/flexsp/cuts.h"
#include "sluice/plan/flexsp/priced.h"

namespace sluice::flexsp {
namespace {

constexpr int kBuckets = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sequences of one microbatch, by bucket: limits, and numbers within the batch.
struct Contents {
  std::vector<std::int64_t> limits;
  std::vector<std::vector<std::int64_t>> sequences;
};

// Which group has how many of each bucket: the degree's number, and a count by bucket.
struct SolvedGroup {
  std::size_t degree = 0;
  std::vector<std::int64_t> counts;
};
using Solved = std::vector<SolvedGroup>;

// One microbatch as an integer program. Columns: C, then m_p, then A_qp group by group.
class Program {
 public:
  Program(const Prices& prices, const Contents& buckets)
      : prices_(prices), limits_(buckets.limits) {
    for (const auto& sequences : buckets.sequences)
      counts_.push_back(static_cast<std::int64_t>(sequences.size()));
    for (std::size_t k = 0; k < prices.size(); ++k)
      for (int i = 0; i < prices.devices() / prices[k].degree; ++i)
        if (limits_.front() <= prices[k].room) groups_.push_back(k);
    add_columns();
    add_rows();
  }

  std::optional<Solved> solve(double seconds) const {
    const std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model(Cbc_newModel(), Cbc_deleteModel);
    Cbc_Model* cbc = model.get();
    Cbc_setLogLevel(cbc, 0);
    Cbc_setParameter(cbc, "timeMode", "elapsed");
    Cbc_setParameter(cbc, "sec", fmt::format("{}", seconds).c_str());
    for (const Column& column : columns_)
      Cbc_addCol(cbc, column.name.c_str(), 0, column.most, column.cost, column.integer ? 1 : 0, 0,
                 nullptr, nullptr);
    for (const Row& row : rows_)
      Cbc_addRow(cbc, "", static_cast<int>(row.columns.size()), row.columns.data(),
                 row.values.data(), row.sense, row.right);
    std::optional<Solved> answer = of_one_degree();
    if (answer) start_from(cbc, *answer);
    Cbc_solve(cbc);
    if (const double* values = Cbc_bestSolution(cbc)) {
      Solved found = solved(values);
      if (!answer || seconds_of(found) < seconds_of(*answer)) answer = std::move(found);
    }
    return answer;
  }

 private:
  struct Column {
    std::string name;
    double most, cost;
    bool integer;
  };
  struct Row {
    char sense;
    double right;
    std::vector<int> columns;
    std::vector<double> values;

    void add(int column, double value) {
      columns.push_back(column);
      values.push_back(value);
    }
  };

  int chosen(std::size_t group) const { return static_cast<int>(1 + group); }
  // -1: a sequence of the bucket does not fit the group.
  int count(std::size_t group, std::size_t bucket) const {
    return count_columns_[group * limits_.size() + bucket];
  }

  void add_columns() {
    columns_.push_back({"C", kInfinity, 1, false});
    for (std::size_t p = 0; p < groups_.size(); ++p)
      columns_.push_back({fmt::format("m{}", p), 1, 0, true});
    for (std::size_t p = 0; p < groups_.size(); ++p)
      for (std::size_t q = 0; q < limits_.size(); ++q) {
        const std::int64_t most = std::min(counts_[q], prices_[groups_[p]].room / limits_[q]);
        count_columns_.push_back(most > 0 ? static_cast<int>(columns_.size()) : -1);
        if (most > 0)
          columns_.push_back({fmt::format("A{}_{}", q, p), static_cast<double>(most), 0, true});
      }
  }

  void add_rows() {
    Row devices{'L', static_cast<double>(prices_.devices()), {}, {}};
    for (std::size_t p = 0; p < groups_.size(); ++p) {
      const Prices::Degree& degree = prices_[groups_[p]];
      Row time{'L', 0, {}, {}}, memory{'L', 0, {}, {}};
      for (std::size_t q = 0; q < limits_.size(); ++q) {
        if (count(p, q) < 0) continue;
        const auto limit = static_cast<double>(limits_[q]);
        time.add(count(p, q), degree.load(limit));
        memory.add(count(p, q), limit);
      }
      time.add(chosen(p), prices_.overhead());
      time.add(0, -1);
      memory.add(chosen(p), -static_cast<double>(degree.room));
      rows_.push_back(std::move(time));
      rows_.push_back(std::move(memory));
      devices.add(chosen(p), degree.degree);
      if (p > 0 && groups_[p - 1] == groups_[p]) {
        Row order{'L', 0, {}, {}};
        order.add(chosen(p), 1);
        order.add(chosen(p - 1), -1);
        rows_.push_back(std::move(order));
      }
    }
    rows_.push_back(std::move(devices));
    for (std::size_t q = 0; q < limits_.size(); ++q) {
      Row all{'E', static_cast<double>(counts_[q]), {}, {}};
      for (std::size_t p = 0; p < groups_.size(); ++p)
        if (count(p, q) >= 0) all.add(count(p, q), 1);
      rows_.push_back(std::move(all));
    }
  }

  double seconds_of(const SolvedGroup& group) const {
    double seconds = prices_.overhead();
    for (std::size_t q = 0; q < limits_.size(); ++q)
      seconds += static_cast<double>(group.counts[q]) *
                 prices_[group.degree].load(static_cast<double>(limits_[q]));
    return seconds;
  }
  double seconds_of(const Solved& all) const {
    double seconds = 0;
    for (const SolvedGroup& group : all)
      seconds = std::max(seconds, seconds_of(group));
    return seconds;
  }

  // The best of: groups of one degree, longest sequences first, each into the group with the fewest
  // tokens.
  std::optional<Solved> of_one_degree() const {
    std::optional<Solved> best;
    for (std::size_t k = 0; k < prices_.size(); ++k) {
      const auto num = static_cast<std::size_t>(prices_.devices() / prices_[k].degree);
      Solved groups(num, {k, std::vector<std::int64_t>(limits_.size(), 0)});
      std::vector<std::int64_t> tokens(num, 0);
      bool fits = true;
      for (std::size_t q = limits_.size(); q-- > 0 && fits;)
        for (std::int64_t i = 0; i < counts_[q] && fits; ++i) {
          const auto least = static_cast<std::size_t>(
              std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
          tokens[least] += limits_[q];
          ++groups[least].counts[q];
          fits = tokens[least] <= prices_[k].room;
        }
      // Those with sequences come first, as the program wants it.
      while (!groups.empty() && tokens[groups.size() - 1] == 0)
        groups.pop_back();
      if (fits && (!best || seconds_of(groups) < seconds_of(*best))) best = std::move(groups);
    }
    return best;
  }

  void start_from(Cbc_Model* cbc, const Solved& start) const {
    std::vector<double> values(columns_.size(), 0);
    values[0] = seconds_of(start);
    const auto first = static_cast<std::size_t>(
        std::find(groups_.begin(), groups_.end(), start.front().degree) - groups_.begin());
    for (std::size_t g = 0; g < start.size(); ++g) {
      values[static_cast<std::size_t>(chosen(first + g))] = 1;
      for (std::size_t q = 0; q < limits_.size(); ++q)
        if (const int column = count(first + g, q); column >= 0)
          values[static_cast<std::size_t>(column)] = static_cast<double>(start[g].counts[q]);
    }
    std::vector<const char*> names;
    for (const Column& column : columns_)
      names.push_back(column.name.c_str());
    Cbc_setMIPStart(cbc, static_cast<int>(names.size()), names.data(), values.data());
  }

  Solved solved(const double* values) const {
    Solved out;
    for (std::size_t p = 0; p < groups_.size(); ++p) {
      SolvedGroup group{groups_[p], {}};
      for (std::size_t q = 0; q < limits_.size(); ++q)
        group.counts.push_back(count(p, q) < 0 ? 0 : std::llround(values[count(p, q)]));
      if (std::accumulate(group.counts.begin(), group.counts.end(), std::int64_t{0}) > 0)
        out.push_back(std::move(group));
    }
    return out;
  }

  const Prices& prices_;
  std::vector<std::int64_t> limits_, counts_;  // of the buckets
  std::vector<std::size_t> groups_;            // the degree's number of each candidate
  std::vector<Column> columns_;
  std::vector<Row> rows_;
  std::vector<int> count_columns_;
};

Buckets buckets_of(const Prices& prices, std::span<const std::int64_t> lengths,
                   const PlanOptions& options) {
  if (options.bucketing == Bucketing::none) return no_buckets(lengths);
  if (options.bucketing == Bucketing::fixed) return fixed_buckets(lengths, options.bucket_width);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Buckets buckets = best_buckets(lengths, kBuckets);
  for (int count = kBuckets; 2 * buckets.error > prices.all_room() - tokens && buckets.error > 0;)
    buckets = best_buckets(lengths, ++count);
  return buckets;
}

Contents contents_of(const Prices& prices, std::span<const std::int64_t> lengths,
                     std::span<const std::size_t> numbers, const PlanOptions& options) {
  std::vector<std::int64_t> own;
  for (const std::size_t number : numbers)
    own.push_back(lengths[number]);
  const Buckets buckets = buckets_of(prices, own, options);
  Contents out{buckets.limits, {}};
  out.sequences.resize(out.limits.size());
  for (const std::size_t number : numbers)
    out.sequences[buckets.of(lengths[number])].push_back(static_cast<std::int64_t>(number));
  return out;
}

// Groups with sequences, and empty ones for the devices that are left: largest first, so that each
// stands at a multiple of its degree.
std::vector<SequenceGroup> placed(const Prices& prices, const Solved& solved, Contents buckets) {
  std::vector<SequenceGroup> out;
  int left = prices.devices();
  for (const SolvedGroup& group : solved) {
    SequenceGroup& own = out.emplace_back(SequenceGroup{.degree = prices[group.degree].degree});
    left -= own.degree;
    for (std::size_t q = 0; q < group.counts.size(); ++q)
      for (std::int64_t i = 0; i < group.counts[q]; ++i) {
        own.sequences.push_back(buckets.sequences[q].back());
        buckets.sequences[q].pop_back();
      }
    std::sort(own.sequences.begin(), own.sequences.end());
  }
  for (std::size_t k = prices.size(); k-- > 0;)
    for (; left >= prices[k].degree; left -= prices[k].degree)
      out.push_back({.degree = prices[k].degree});
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.degree > b.degree; });
  int rank = 0;
  for (SequenceGroup& group : out) {
    group.first_rank = rank;
    rank += group.degree;
  }
  return out;
}

}  // namespace

bool has_milp() { return true; }

PlannedBatch plan_by_milp(const Cluster& cluster, std::span<const std::int64_t> lengths,
                          const PlanOptions& options, double seconds) {
  const Prices prices(cluster);
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options.sort)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::int64_t> ordered, sums{0};
  for (const std::size_t number : order) {
    ordered.push_back(lengths[number]);
    sums.push_back(sums.back() + lengths[number]);
  }
  using Groups = std::optional<std::vector<SequenceGroup>>;
  std::map<std::pair<std::size_t, std::size_t>, Groups> known;
  const auto groups_of = [&](std::size_t first, std::size_t last) -> const Groups& {
    const auto [at, is_new] = known.try_emplace({first, last}, std::nullopt);
    if (is_new) {
      const Contents buckets =
          contents_of(prices, lengths, std::span(order).subspan(first, last - first), options);
      const std::optional<Solved> solved = Program(prices, buckets).solve(seconds);
      if (solved) at->second = placed(prices, *solved, buckets);
    }
    return at->second;
  };
  const auto planned = [&](const Cuts& cuts) -> std::optional<PlannedBatch> {
    BatchPlan plan;
    std::size_t first = 0;
    for (const std::size_t last : cuts) {
      if (sums[last] - sums[first] > prices.all_room()) return std::nullopt;
      first = last;
    }
    first = 0;
    for (const std::size_t last : cuts) {
      const Groups& groups = groups_of(first, last);
      if (!groups) return std::nullopt;
      plan.microbatches.push_back(*groups);
      first = last;
    }
    return priced(cluster, lengths, plan);
  };

  const int count = static_cast<int>(lengths.size());
  const std::int64_t room = prices.all_room();
  const int fewest = static_cast<int>((sums.back() + room - 1) / room);
  std::optional<PlannedBatch> best;
  // More where memory is too short for so few.
  int tried = 0;
  for (int most = fewest + options.trials - 1, from = fewest;
       tried < options.trials && from <= count; from = most + 1, most += options.trials) {
    const std::vector<Cuts> all = cut_by_tokens(ordered, std::min(most, count));
    for (int m = from; m <= static_cast<int>(all.size()) && tried < options.trials; ++m) {
      std::optional<PlannedBatch> batch = planned(all[static_cast<std::size_t>(m - 1)]);
      if (batch || best) ++tried;
      if (batch && (!best || batch->seconds < best->seconds)) best = std::move(batch);
    }
  }
  SLUICE_CHECK(best, "{} sequences cannot be planned", count);
  return *std::move(best);
}

}  // namespace sluice::flexsp
