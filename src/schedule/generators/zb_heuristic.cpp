// Zero-bubble schedules that are searched for rather than drawn: zb-1p, zb-2p, and zb under any
// cap. Each unit of the cap beyond p takes one F out of the bubble. Here zb, 3 devices, 5
// microbatches, cap 4, unit times:
//
//   device 0  F0 F1 F2 F3 .  I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4
//   device 1  .  F0 F1 F2 I0 F3 I1 W0 I2 F4 I3 W1 W2 I4 W3 W4
//   device 2  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4
#include "sluice/schedule/generators/zb_heuristic.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Fractions such as keep-after-i 0.1 do not add up exactly; nobody means a cap to a billionth.
constexpr double kTolerance = 1e-9;

// One device and what it has done so far.
struct Stage {
  OpTimes times;
  std::vector<double> f_end;  // by microbatch
  std::vector<double> i_end;
  int num_w = 0;
  double start = 0;   // of its first F
  double clock = 0;   // end of its last op
  double bubble = 0;  // idle since `start`
  Program program;

  int num_f() const { return static_cast<int>(f_end.size()); }
  int num_i() const { return static_cast<int>(i_end.size()); }
  int in_flight() const { return num_f() - num_i(); }
  int pending_w() const { return num_i() - num_w; }
};

// A pipeline being played: the devices, and the three moves each of them has. A microbatch's ops
// start as soon as the device is free and the input has arrived.
class Line {
 public:
  Line(const GeneratorOptions& options, const StashRule& rule)
      : num_microbatches_(options.microbatches), comm_(options.comm), rule_(rule) {
    stages_.resize(static_cast<std::size_t>(options.devices));
    const auto m = static_cast<std::size_t>(num_microbatches_);
    for (int j = 0; j < options.devices; ++j) {
      Stage& stage = at(j);
      stage.times = options.times_of(j);
      stage.f_end.reserve(m);
      stage.i_end.reserve(m);
      stage.program.reserve(3 * m);
    }
  }

  int num_stages() const { return static_cast<int>(stages_.size()); }
  int num_microbatches() const { return num_microbatches_; }
  double comm() const { return comm_; }
  const Stage& operator[](int j) const { return stages_[static_cast<std::size_t>(j)]; }
  double max_bubble() const { return max_bubble_; }

  // When the input of the next F (or I) of stage j is there; kNever while nobody works on it.
  double f_arrival(int j) const {
    const auto next = static_cast<std::size_t>((*this)[j].num_f());
    if ((*this)[j].num_f() == num_microbatches_) return kNever;
    if (j == 0) return 0;
    const std::vector<double>& ends = (*this)[j - 1].f_end;
    return next < ends.size() ? ends[next] + comm_ : kNever;
  }
  double i_arrival(int j) const {
    const auto next = static_cast<std::size_t>((*this)[j].num_i());
    const bool last = j == num_stages() - 1;
    const std::vector<double>& ends = last ? (*this)[j].f_end : (*this)[j + 1].i_end;
    return next < ends.size() ? ends[next] + (last ? 0 : comm_) : kNever;
  }

  bool fits(int j, int in_flight, int pending_w) const {
    return rule_.held(in_flight, pending_w) <= rule_.limit.of(j) + kTolerance;
  }
  // How many W stage j has to run before it may hold one more microbatch.
  int num_w_before_f(int j) const {
    const Stage& stage = (*this)[j];
    int n = 0;
    while (n < stage.pending_w() && !fits(j, stage.in_flight() + 1, stage.pending_w() - n))
      ++n;
    return n;
  }

  void put_f(int j) {
    Stage& stage = at(j);
    SLUICE_CHECK(fits(j, stage.in_flight() + 1, stage.pending_w()),
                 "stage {} holds {} in flight and {} pending W, limit {}", j, stage.in_flight(),
                 stage.pending_w(), rule_.limit.of(j));
    put(j, OpKind::F, stage.num_f(), f_arrival(j), stage.times.f);
    stage.f_end.push_back(stage.clock);
  }
  void put_i(int j) {
    Stage& stage = at(j);
    put(j, OpKind::I, stage.num_i(), i_arrival(j), stage.times.i);
    stage.i_end.push_back(stage.clock);
  }
  void put_w(int j) {
    Stage& stage = at(j);
    put(j, OpKind::W, stage.num_w, 0, stage.times.w);
    ++stage.num_w;
  }

  // First start to last end on the longest device.
  double span() const {
    double longest = 0;
    for (const Stage& stage : stages_)
      longest = std::max(longest, stage.clock - stage.start);
    return longest;
  }
  std::vector<Program> take_programs() {
    std::vector<Program> programs;
    for (Stage& stage : stages_)
      programs.push_back(std::move(stage.program));
    return programs;
  }

 private:
  Stage& at(int j) { return stages_[static_cast<std::size_t>(j)]; }

  void put(int j, OpKind kind, int microbatch, double arrival, double time) {
    SLUICE_CHECK(arrival < kNever, "stage {} has no input for microbatch {}", j, microbatch);
    Stage& stage = at(j);
    const double start = std::max(stage.clock, arrival);
    if (stage.program.empty()) {
      stage.start = start;
    } else {
      stage.bubble += start - stage.clock;
      max_bubble_ = std::max(max_bubble_, stage.bubble);
    }
    stage.clock = start + time;
    Op op;
    op.stage = j;
    op.microbatch = microbatch;
    op.kind = kind;
    stage.program.push_back(op);
  }

  int num_microbatches_;
  double comm_;
  StashRule rule_;
  std::vector<Stage> stages_;
  double max_bubble_ = 0;
};

// ---- The published heuristic ----

struct HeuristicSettings {
  bool whole_f = true;    // warm-up: only forwards that end before the first gradient arrives
  bool i_first = true;    // a stage well ahead of the next one may skip a forward
  bool fill_gaps = true;  // a W goes into every gap, even one that is too short for it
};

// Forwards of each stage beyond its first, before its first I.
std::vector<int> extra_forwards(const Line& line, bool whole_f) {
  const int p = line.num_stages();
  const int m = line.num_microbatches();
  std::vector<int> extra(static_cast<std::size_t>(p), 0);
  double arrival = 0;  // of the first gradient
  for (int j = p - 1; j >= 0; --j) {
    const OpTimes& times = line[j].times;
    double clock = line[j].clock;
    int& count = extra[static_cast<std::size_t>(j)];
    while (j < p - 1 && 1 + count < m && line.fits(j, count + 2, 0) &&
           (whole_f ? clock + times.f <= arrival : clock < arrival)) {
      clock += times.f;
      ++count;
    }
    arrival = std::max(clock, arrival) + times.i + line.comm();
  }
  // A stage as far ahead as the one before it would wait for it in every round; and it can never be
  // further ahead.
  for (std::size_t j = 1; j < extra.size(); ++j)
    if (1 + extra[j] < m)
      extra[j] = std::max(0, std::min(extra[j], extra[j - 1] - 1));
    else
      extra[j] = std::min(extra[j], extra[j - 1]);
  return extra;
}

// Which stages do a forward in this round.
std::vector<bool> choose_forwards(const Line& line, bool i_first) {
  const int p = line.num_stages();
  std::vector<bool> chosen(static_cast<std::size_t>(p));
  bool skips = false;
  for (int j = p - 1; j >= 0; --j) {
    const Stage& stage = line[j];
    const bool left = stage.num_f() < line.num_microbatches();
    if (!skips && left && i_first && j < p - 1 && stage.num_f() >= line[j + 1].num_f() + 2) {
      // A forward is in the way if it delays the I that stage j + 1 is about to feed. This stage
      // skips it where waiting for that I does not make its bubble the largest.
      const Stage& next = line[j + 1];
      const double gradient = next.clock + next.times.f + next.times.i + line.comm();
      const double work = stage.times.f + line.num_w_before_f(j) * stage.times.w;
      skips =
          stage.clock >= gradient || (stage.clock + work > gradient &&
                                      gradient - stage.clock <= line.max_bubble() - stage.bubble);
    }
    chosen[static_cast<std::size_t>(j)] = left && !skips;
  }
  return chosen;
}

// W of stage j while it waits for an input.
void fill_until(Line& line, int j, double arrival, bool fill_gaps) {
  const Stage& stage = line[j];
  while (stage.pending_w() > 0 && stage.clock + stage.times.w <= arrival)
    line.put_w(j);
  const double gap = arrival - stage.clock;
  if (gap > 0 && stage.pending_w() > 0 && (fill_gaps || gap > line.max_bubble() - stage.bubble))
    line.put_w(j);
}

void run_all_w(Line& line, int j) {
  while (line[j].pending_w() > 0)
    line.put_w(j);
}

void play_heuristic(Line& line, const HeuristicSettings& settings) {
  const int p = line.num_stages();
  const int m = line.num_microbatches();

  // Warm-up.
  for (int j = 0; j < p; ++j)
    line.put_f(j);
  const std::vector<int> extra = extra_forwards(line, settings.whole_f);
  for (int j = 0; j < p; ++j)
    for (int n = 0; n < extra[static_cast<std::size_t>(j)]; ++n)
      line.put_f(j);
  for (int j = p - 1; j >= 0; --j)
    line.put_i(j);

  // One round per further microbatch: forwards down the line, one I each on the way back.
  for (int round = 1; round < m; ++round) {
    const std::vector<bool> chosen = choose_forwards(line, settings.i_first);
    for (int j = 0; j < p; ++j) {
      if (!chosen[static_cast<std::size_t>(j)]) continue;
      for (int n = line.num_w_before_f(j); n > 0; --n)
        line.put_w(j);
      fill_until(line, j, line.f_arrival(j), settings.fill_gaps);
      line.put_f(j);
    }
    for (int j = p - 1; j >= 0; --j) {
      // Stage 0 gets the last gradients, so it has time for W before each of them.
      if (j == 0 && line[0].num_f() == m) run_all_w(line, 0);
      fill_until(line, j, line.i_arrival(j), settings.fill_gaps);
      line.put_i(j);
    }
  }
  for (int j = 0; j < p; ++j)
    run_all_w(line, j);
}

// ---- The greedy players ----

struct GreedySettings {
  double slope = 1;        // microbatches in flight grow by this much per stage from the last one
  bool f_first = true;     // where both inputs are there
  double fitting_w = 0.5;  // a W goes into a gap that holds at least this share of it
};

void play_greedily(Line& line, const GreedySettings& settings) {
  const int p = line.num_stages();
  const auto most_in_flight = [&](int j) { return std::ceil(settings.slope * (p - j)); };

  // Stages in the order in which they have something to decide: when they fall free, and when an
  // input arrives.
  using WakeUp = std::pair<double, int>;
  std::priority_queue<WakeUp, std::vector<WakeUp>, std::greater<>> wake_ups;
  wake_ups.push({0.0, 0});
  while (!wake_ups.empty()) {
    const auto [now, j] = wake_ups.top();
    wake_ups.pop();
    const Stage& stage = line[j];
    if (stage.clock > now) continue;

    const bool f_allowed =
        stage.in_flight() < most_in_flight(j) && line.fits(j, stage.in_flight() + 1, 0);
    const double f_arrival = f_allowed ? line.f_arrival(j) : kNever;
    const double i_arrival = line.i_arrival(j);
    const double next = std::min(f_arrival, i_arrival);
    if (f_arrival <= now && (settings.f_first || i_arrival > now)) {
      if (line.num_w_before_f(j) > 0)
        line.put_w(j);
      else
        line.put_f(j);
    } else if (i_arrival <= now) {
      line.put_i(j);
    } else if (stage.pending_w() > 0 && next - now >= settings.fitting_w * stage.times.w) {
      line.put_w(j);
    } else {
      if (next < kNever) wake_ups.push({next, j});
      continue;
    }

    wake_ups.push({stage.clock, j});
    const OpKind kind = stage.program.back().kind;
    if (kind == OpKind::F && j < p - 1) wake_ups.push({stage.clock + line.comm(), j + 1});
    if (kind == OpKind::I && j > 0) wake_ups.push({stage.clock + line.comm(), j - 1});
  }
}

// ---- The choice ----

// Keeps the programs of the shortest line.
class Best {
 public:
  Best(const GeneratorOptions& options, const StashRule& rule) : options_(options), rule_(rule) {
    SLUICE_CHECK(rule.after_f <= rule.limit.least() + kTolerance, "{} > {}", rule.after_f,
                 rule.limit.least());
    for (int j = 0; j < options.devices; ++j) {
      const OpTimes& t = options.times_of(j);
      ideal_ = std::max(ideal_, options.microbatches * (t.f + t.i + t.w));
    }
  }

  void limit_all(double limit) { rule_.limit = limit; }

  template <typename Player, typename Settings>
  void consider(Player play, const Settings& settings) {
    if (span_ <= ideal_ * (1 + 1e-12)) return;  // nothing is left to gain
    Line line(options_, rule_);
    play(line, settings);
    if (line.span() >= span_) return;
    span_ = line.span();
    programs_ = line.take_programs();
  }

  void consider_heuristic() {
    for (const bool whole_f : {true, false})
      for (const bool i_first : {true, false})
        for (const bool fill_gaps : {true, false})
          consider(play_heuristic, HeuristicSettings{whole_f, i_first, fill_gaps});
  }

  void consider_greedy() {
    // 1F1B's and zb-h2's warm-up, and the one that reaches the limit on the first device; where
    // limits differ, also whatever each of them allows.
    std::vector<double> slopes = {1, 2, rule_.limit.of(0) / rule_.after_f / options_.devices};
    if (!rule_.limit.uniform()) slopes.push_back(options_.microbatches);
    for (const double slope : slopes)
      for (const bool f_first : {true, false})
        for (const double fitting_w : {0.0, 0.5, 1.0})
          consider(play_greedily, GreedySettings{slope, f_first, fitting_w});
  }

  Schedule schedule(std::string name) {
    Schedule schedule;
    schedule.name = std::move(name);
    schedule.placement = Placement::linear(options_.devices);
    schedule.num_microbatches = options_.microbatches;
    schedule.programs = std::move(programs_);
    return schedule;
  }

 private:
  const GeneratorOptions& options_;
  StashRule rule_;
  double ideal_ = 0;
  double span_ = kNever;
  std::vector<Program> programs_;
};

}  // namespace

Schedule zb_published(std::string name, const GeneratorOptions& options, const StashRule& rule) {
  Best best(options, rule);
  best.consider_heuristic();
  return best.schedule(std::move(name));
}

Schedule zb_under_limit(std::string name, const GeneratorOptions& options, const StashRule& rule) {
  Best best(options, rule);
  best.consider_heuristic();
  best.consider_greedy();
  if (!rule.limit.uniform()) {
    best.limit_all(rule.limit.least());  // what fits there fits everywhere
    best.consider_heuristic();
    best.consider_greedy();
  }
  return best.schedule(std::move(name));
}

namespace generators {
namespace {

// The papers' weights, in halves of a stage-activation: I is taken to free half of the stash.
Schedule generate_published(std::string_view name, const GeneratorOptions& options, int multiple) {
  const StashRule rule{.after_f = 2, .after_i = 1, .limit = 2.0 * multiple * options.devices};
  return zb_published(std::string(name), options, rule);
}

Schedule generate_capped(const GeneratorOptions& options) {
  const int m = options.microbatches;
  if (!options.memory_cap)
    throw user_error(
        "`memory_cap` is missing: zb takes from 1 (one microbatch at a time) to {} (no limit) "
        "stage-activations per device; 1f1b holds {}",
        m, std::min(m, options.devices));
  const MemoryCap& cap = *options.memory_cap;
  std::vector<double> enough, limits;
  for (int j = 0; j < static_cast<int>(cap.size()); ++j) {
    enough.push_back(std::max(cap.of(j), 1.0));
    // Whole stashes fill only whole units of the cap.
    limits.push_back(options.keep_after_i == 1 ? std::floor(cap.of(j)) : cap.of(j));
  }
  if (!(cap.least() >= 1))
    throw CapTooLow(fmt::format("`memory_cap` is {}: an F alone holds 1 stage-activation; give {} "
                                "cap of 1 to {} (no limit)",
                                cap.text(), cap.size() == 1 ? "a" : "every device a", m),
                    enough);
  if (!(options.keep_after_i >= 0 && options.keep_after_i <= 1))
    throw user_error(
        "`keep_after_i` is {}: needs the share of activation memory kept between I and W, from 0 "
        "to 1",
        number(options.keep_after_i));
  return zb_under_limit("zb", options,
                        {.after_f = 1, .after_i = options.keep_after_i, .limit = limits});
}

}  // namespace

extern const Generator zb_1p;
const Generator zb_1p = {
    .name = "zb-1p",
    .aliases = {},
    .summary =
        "zero bubble, searched for memory p if I frees half a stash; else the peak is higher",
    .bubble = "(p-1)(F+I-W)",
    .memory = "p if I frees half of a stash; may be more",
    .knobs = {.times = true},
    .generate = [](const GeneratorOptions& options) {
      return generate_published("zb-1p", options, 1);
    }};

extern const Generator zb_2p;
const Generator zb_2p = {
    .name = "zb-2p",
    .aliases = {},
    .summary =
        "zero bubble, searched for memory 2p if I frees half a stash; else the peak is higher",
    .bubble = "about 0 for m >= 4p",
    .memory = "2p if I frees half of a stash; may be more",
    .knobs = {.times = true},
    .generate = [](const GeneratorOptions& options) {
      return generate_published("zb-2p", options, 2);
    }};

extern const Generator zb;
const Generator zb = {.name = "zb",
                      .aliases = {},
                      .summary = "zero bubble under any memory cap, for unequal times too",
                      .bubble = "2p-1-X at unit times, p <= X < 2p; searched otherwise",
                      .memory = "at most X (`memory_cap`), never more",
                      .knobs = {.memory_cap = true, .times = true},
                      .generate = generate_capped};

}  // namespace generators
}  // namespace sluice
