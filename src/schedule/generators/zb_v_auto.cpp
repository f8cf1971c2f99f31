// ZB-V found by playing the pipeline forward with the real op times, where the handcrafted zb-v
// assumes equal ones. Device d holds stage d on the way down and stage 2p-1-d on the way up (lower
// case), and never more than 2p stage-activations. Here 2 devices, 3 microbatches, unit times:
//
//   device 0  F0 F1 F2 f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 I1 w2 I2 W1 W2
//   device 1  .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 I1 i2 I2 w1 W1 w2 W2
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

// A microbatch goes down and up the V forwards, then down and up again backwards.
enum Leg : std::size_t { kForwardDown, kForwardUp, kBackwardDown, kBackwardUp };
constexpr std::size_t kNumLegs = 4;
constexpr bool is_forward(Leg leg) { return leg == kForwardDown || leg == kForwardUp; }
constexpr bool goes_down(Leg leg) { return leg == kForwardDown || leg == kBackwardDown; }
constexpr int chunk_of(Leg leg) { return leg == kForwardDown || leg == kBackwardUp ? 0 : 1; }

struct Device {
  std::array<std::vector<double>, kNumLegs> ends;  // by microbatch
  std::vector<int> w_chunks;                       // of the backwards so far, whose W follow suit
  std::size_t num_w = 0;
  double clock = 0;   // end of the last op
  double bubble = 0;  // idle since the first op
  PassList passes;

  int done(Leg leg) const { return static_cast<int>(ends[leg].size()); }
  int forwards() const { return done(kForwardDown) + done(kForwardUp); }
  bool has_pending_w() const { return num_w < w_chunks.size(); }
  int held() const { return forwards() - static_cast<int>(num_w); }
};

struct Settings {
  bool fill_forward = true;        // a W may delay a forward,
  bool fill_backward_down = true;  // or a backward on the way down; on the way up it always may
};

class Vee {
 public:
  // `approved`: idle time of each device in an earlier run, or empty. A device that had less than
  // the worst may be idle for the difference.
  Vee(const GeneratorOptions& options, const OpTimes& times, const Settings& settings,
      const std::vector<double>& approved)
      : p_(options.devices),
        m_(options.microbatches),
        comm_(options.comm),
        times_(times),
        settings_(settings),
        may_idle_(static_cast<std::size_t>(p_), 0),
        devices_(static_cast<std::size_t>(p_)) {
    if (approved.empty()) return;
    const double worst = *std::max_element(approved.begin(), approved.end());
    for (std::size_t d = 0; d < approved.size(); ++d)
      may_idle_[d] = worst - approved[d];
  }

  void play() {
    warm_up();
    even_out();
    for (int round = 0; round < 2 * m_; ++round) {
      backward_on_each();
      forward_on_each();
    }
    for (int d = 0; d < p_; ++d)
      while (at(d).has_pending_w())
        put_w(d);
  }

  double max_bubble() const { return max_bubble_; }
  std::vector<double> bubbles() const {
    std::vector<double> bubbles;
    for (const Device& device : devices_)
      bubbles.push_back(device.bubble);
    return bubbles;
  }
  std::vector<PassList> take_passes() {
    std::vector<PassList> passes;
    for (Device& device : devices_)
      passes.push_back(std::move(device.passes));
    return passes;
  }

 private:
  int limit() const { return 2 * p_; }
  Device& at(int d) { return devices_[static_cast<std::size_t>(d)]; }

  // The device that the leg reaches before d; -1 where the leg begins on d.
  int before(Leg leg, int d) const {
    if (goes_down(leg)) return d - 1;
    return d < p_ - 1 ? d + 1 : -1;
  }
  // Whether the next microbatch of this leg has an input on d, and since when.
  bool is_ready(Leg leg, int d) {
    const int next = at(d).done(leg);
    if (next == m_) return false;
    if (const int from = before(leg, d); from >= 0) return at(from).done(leg) > next;
    return leg == kForwardDown || at(d).done(Leg{leg - 1}) > next;
  }
  double arrival(Leg leg, int d) {
    SLUICE_CHECK(is_ready(leg, d), "leg {} of microbatch {} has no input on device {}",
                 static_cast<int>(leg), at(d).done(leg), d);
    const std::size_t next = at(d).ends[leg].size();
    if (const int from = before(leg, d); from >= 0) return at(from).ends[leg][next] + comm_;
    return leg == kForwardDown ? 0 : at(d).ends[leg - 1][next];
  }

  void run(int d, double ready, double time, Pass pass) {
    Device& device = at(d);
    const double start = std::max(device.clock, ready);
    if (!device.passes.empty()) device.bubble += start - device.clock;
    max_bubble_ = std::max(max_bubble_, device.bubble);
    device.clock = start + time;
    device.passes.push_back(pass);
  }
  void put(Leg leg, int d) {
    const bool forward = is_forward(leg);
    run(d, arrival(leg, d), forward ? times_.f : times_.i,
        {forward ? OpKind::F : OpKind::I, chunk_of(leg)});
    at(d).ends[leg].push_back(at(d).clock);
    if (!forward) at(d).w_chunks.push_back(chunk_of(leg));
  }
  void put_w(int d) {
    Device& device = at(d);
    run(d, 0, times_.w, {OpKind::W, device.w_chunks[device.num_w]});
    ++device.num_w;
  }
  // The pass, after the W that memory needs and that the wait for its input has room for.
  void put_with_w(Leg leg, int d) {
    Device& device = at(d);
    if (is_forward(leg)) {
      while (device.held() >= limit() && device.has_pending_w())
        put_w(d);
      SLUICE_CHECK(device.held() < limit(), "device {} holds {}", d, device.held());
    }
    const double ready = arrival(leg, d);
    while (device.has_pending_w() && device.clock + times_.w <= ready)
      put_w(d);
    const double slack =
        std::max(max_bubble_, may_idle_[static_cast<std::size_t>(d)]) - device.bubble;
    const bool may_fill = is_forward(leg)        ? settings_.fill_forward
                          : leg == kBackwardDown ? settings_.fill_backward_down
                                                 : true;
    if (may_fill && device.has_pending_w() && ready - device.clock > slack) put_w(d);
    put(leg, d);
  }

  // The first microbatch goes down and up; waiting for it to come up, each device takes as many
  // more down as there is time for. What is held grows by two per device towards device 0, where it
  // must still fit.
  void warm_up() {
    for (int d = 0; d < p_; ++d)
      put(kForwardDown, d);
    put(kForwardUp, p_ - 1);
    for (int i = p_ - 2; i >= 0; --i) {
      while (at(i).held() + 2 * (i + 1) <= limit() && at(0).done(kForwardDown) < m_ &&
             at(i).clock + times_.f <= arrival(kForwardUp, i))
        for (int d = 0; d <= i; ++d)
          put(kForwardDown, d);
      put(kForwardUp, i);
    }
  }

  // Later devices catch up, down and up in turn, so that all enter the rounds equally far.
  void even_out() {
    Leg leg = kForwardDown;
    for (int i = 1; i < p_; ++i) {
      const auto is_behind = [&] {
        const int ups = at(i - 1).done(kForwardUp);
        return at(i).forwards() < at(i - 1).forwards() ||
               (at(i).done(kForwardUp) <= ups && ups < m_);
      };
      while (is_behind()) {
        for (int d = p_ - 1; d >= i; --d)
          if (at(d).done(leg) < m_) put(leg, d);
        leg = leg == kForwardDown ? kForwardUp : kForwardDown;
      }
    }
  }

  Leg next_backward(int d) {
    const int downs = at(d).done(kBackwardDown);
    if (at(d).done(kBackwardUp) == downs) return kBackwardDown;
    if (downs == m_ || is_ready(kBackwardUp, d)) return kBackwardUp;
    return kBackwardDown;
  }
  void backward_on_each() {
    std::vector<Leg> legs;
    for (int d = 0; d < p_; ++d)
      legs.push_back(next_backward(d));
    for (int d = p_ - 1; d >= 0; --d)
      if (legs[static_cast<std::size_t>(d)] == kBackwardUp) put_with_w(kBackwardUp, d);
    for (int d = 0; d < p_; ++d)
      if (legs[static_cast<std::size_t>(d)] == kBackwardDown) put_with_w(kBackwardDown, d);
  }
  void forward_on_each() {
    for (int d = 0; d < p_; ++d) {
      if (is_ready(kForwardUp, d))
        put_with_w(kForwardUp, d);
      else if (is_ready(kForwardDown, d))
        put_with_w(kForwardDown, d);
    }
  }

  int p_;
  int m_;
  double comm_;
  OpTimes times_;
  Settings settings_;
  std::vector<double> may_idle_;  // per device
  std::vector<Device> devices_;
  double max_bubble_ = 0;
};

// The rounds keep all devices in step, so they are played with the mean of unequal stage times.
OpTimes mean_times(const GeneratorOptions& options) {
  const int num_stages = 2 * options.devices;
  OpTimes mean{.f = 0, .i = 0, .w = 0};
  for (int stage = 0; stage < num_stages; ++stage) {
    const OpTimes& times = options.times_of(stage);
    mean.f += times.f / num_stages;
    mean.i += times.i / num_stages;
    mean.w += times.w / num_stages;
  }
  return mean;
}

Schedule generate_zb_v_auto(const GeneratorOptions& options) {
  const OpTimes times = options.stage_times.empty() ? options.times : mean_times(options);
  double least = std::numeric_limits<double>::infinity();
  std::vector<PassList> best;
  for (const bool fill_forward : {true, false}) {
    for (const bool fill_backward_down : {true, false}) {
      // A run knows better where idle time is free than the run before it, until it does not.
      std::vector<double> approved;
      double last = std::numeric_limits<double>::infinity();
      for (;;) {
        Vee vee(options, times, {fill_forward, fill_backward_down}, approved);
        vee.play();
        if (vee.max_bubble() >= last) break;
        last = vee.max_bubble();
        approved = vee.bubbles();
        if (last < least) {
          least = last;
          best = vee.take_passes();
        }
      }
    }
  }
  return schedule_from_passes("zb-v-auto", Placement::vee(options.devices, 2), options.microbatches,
                              1, best);
}

}  // namespace

extern const Generator zb_v_auto;
const Generator zb_v_auto = {.name = "zb-v-auto",
                             .aliases = {},
                             .summary = "zb-v searched with the real op times",
                             .bubble = "a little below zb-v's 2(p-1)(I-W)",
                             .memory = "2p",
                             .knobs = {.default_stages_per_device = 2, .times = true},
                             .generate = generate_zb_v_auto};

}  // namespace sluice::generators
