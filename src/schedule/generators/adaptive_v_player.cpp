#include "sluice/schedule/generators/adaptive_v_player.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace sluice::vee {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // relative

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

WakeUps::WakeUps(int devices) : devices_(devices) {
  while (leaves_ < devices)
    leaves_ *= 2;
  time_.assign(at(leaves_), kNever);
  winner_.resize(at(2 * leaves_));
  for (int n = 0; n < leaves_; ++n)
    winner_[at(leaves_ + n)] = n;
}

void WakeUps::reset() {
  std::fill_n(time_.begin(), devices_, 0.0);
  for (int n = leaves_ - 1; n > 0; --n)
    winner_[at(n)] = winner_[at(2 * n)];
}

void WakeUps::set(int device, double time) {
  time_[at(device)] = time;
  for (int n = (leaves_ + device) / 2; n > 0; n /= 2) {
    const int left = winner_[at(2 * n)];
    const int right = winner_[at(2 * n + 1)];
    const int winner = time_[at(left)] <= time_[at(right)] ? left : right;
    if (winner != device && winner == winner_[at(n)]) return;
    winner_[at(n)] = winner;
  }
}

Player::Player(int devices, int num_units, Units units, Costs costs)
    : devices_(devices),
      num_units_(num_units),
      units_(std::move(units)),
      costs_(std::move(costs)),
      work_(at(devices)),
      state_(at(devices)),
      wake_ups_(devices) {
  const int passes = kNumLetters * devices;
  source_.resize(at(passes));
  delay_.resize(at(passes));
  done_.resize(at(passes) + 1);
  end_.resize(done_.size() * at(num_units));
  for (int d = 0; d < devices; ++d) {
    const bool last = d == devices - 1;
    // The pass after the last stands for the input data: done from the start, at time 0.
    source_[at(index(d, F0))] = d == 0 ? passes : index(d - 1, F0);
    source_[at(index(d, F1))] = last ? index(d, F0) : index(d + 1, F1);
    source_[at(index(d, I1))] = d == 0 ? index(d, F1) : index(d - 1, I1);
    source_[at(index(d, I0))] = last ? index(d, I1) : index(d + 1, I0);
    source_[at(index(d, W1))] = index(d, I1);
    source_[at(index(d, W0))] = index(d, I0);
    for (const Letter letter : kLetters) {
      const int pass = index(d, letter);
      const int source = source_[at(pass)];
      delay_[at(pass)] = source == passes || source / kNumLetters == d ? 0 : costs_.comm;
      work_[at(d)] += num_units / units_.num_slices() * costs_.duration[at(pass)];
    }
  }
}

void Player::start(const Order& order) {
  std::fill(done_.begin(), done_.end(), 0);
  done_.back() = num_units_;
  for (int d = 0; d < devices_; ++d) {
    state_[at(d)] = {};
    state_[at(d)].row = order.row(d).data();
  }
}

// Letters that moved up are still in the row: a letter has run already where fewer of its kind
// stand before it than are done.
inline Letter Player::head_letter(Device& device, const int* done) const {
  for (;; ++device.head) {
    const Letter letter = device.row[device.head];
    if (device.before[letter] == done[letter]) return letter;
    ++device.before[letter];
  }
}

// Which occurrence of its source the next occurrence of a pass waits for.
inline int Player::needed(int pass) const {
  return pass == index(0, I1) ? units_.turned(done_[at(pass)]) : done_[at(pass)];
}

// When the input of the next occurrence of a pass is there; kNever where nobody knows yet, and
// where all occurrences are done.
inline double Player::arrival(int pass) const {
  const int unit = needed(pass);
  const int source = source_[at(pass)];
  if (done_[at(source)] <= unit) return kNever;
  return end_[at(source) * at(num_units_) + at(unit)] + delay_[at(pass)];
}

// Whether the next occurrence of a letter has to wait for room.
inline bool Player::is_blocked(int d, Letter letter, const FillRules& rules) const {
  if (!rules.strict || !is_forward(letter)) return false;
  Stash stash = state_[at(d)].stash;
  stash.add(letter, units_.size(letter, done_[at(index(d, letter))]));
  return stash.size(rules.keep_after_i) > rules.limits[at(d)];
}

// Of the next occurrence of a letter.
inline double Player::duration(int d, Letter letter) const {
  const int pass = index(d, letter);
  return costs_.duration[at(pass)] * units_.share(letter, done_[at(pass)]);
}

// Whether the next occurrence of a forward may run now: between here and its place in the row the
// device holds one activation more.
inline bool Player::fits(int d, const int* done, Letter forward, const FillRules& rules) const {
  const Device& device = state_[at(d)];
  auto before = device.before;
  Stash stash = device.stash;
  stash.add(forward, units_.size(forward, done[forward]));
  for (const Letter* letter = device.row + device.head;
       stash.size(rules.keep_after_i) <= rules.limits[at(d)]; ++letter) {
    const int n = before[*letter]++;
    if (n < done[*letter]) continue;
    if (*letter == forward) return true;
    stash.add(*letter, units_.size(*letter, n));
  }
  return false;
}

bool Player::squeeze(const Order& order, std::vector<int>& slots) {
  constexpr int kWaits = -1;
  const int length = order.row_length();
  slots.resize(order.letters.size());
  start(order);
  std::vector<int> runs(at(devices_));
  int finished = 0;
  for (int slot = 0; finished < devices_; ++slot) {
    bool any = false;
    for (int d = 0; d < devices_; ++d) {
      const Device& device = state_[at(d)];
      runs[at(d)] = kWaits;
      if (device.head == length) continue;
      const int pass = index(d, device.row[device.head]);
      if (done_[at(source_[at(pass)])] <= needed(pass)) continue;
      runs[at(d)] = pass;
      any = true;
    }
    if (!any) return false;
    // Only now, so that nobody saw an input that is still being computed.
    for (int d = 0; d < devices_; ++d) {
      if (runs[at(d)] == kWaits) continue;
      Device& device = state_[at(d)];
      slots[at(d) * at(length) + at(device.head)] = slot;
      ++done_[at(runs[at(d)])];
      if (++device.head == length) ++finished;
    }
  }
  return true;
}

inline void Player::run(int d, Letter letter, double now, Order& order) {
  Device& device = state_[at(d)];
  if (device.ran == 0)
    device.first = now;
  else
    device.slack -= now - device.clock;
  const int pass = index(d, letter);
  device.clock = now + duration(d, letter);
  device.stash.add(letter, units_.size(letter, done_[at(pass)]));
  end_[at(pass) * at(num_units_) + at(done_[at(pass)]++)] = device.clock;
  order.letters[at(d) * at(order.row_length()) + at(device.ran++)] = letter;

  if (is_weight(letter)) return;
  const int next = letter == F0 || letter == I1 ? d + 1 : d - 1;
  if (next < 0 || next == devices_) return;
  const double there = std::max(device.clock + costs_.comm, state_[at(next)].clock);
  if (there < wake_ups_.time(next) && state_[at(next)].ran < order.row_length())
    wake_ups_.set(next, there);
}

// What a device runs at `now` while its next pass in order waits; next_look is when to try again
// where nothing can.
inline std::optional<Letter> Player::filler(int d, Letter head, double now, const FillRules& rules,
                                            double& next_look) const {
  const int* done = &done_[at(index(d, F0))];
  next_look = is_blocked(d, head, rules) ? kNever : arrival(index(d, head));
  const double gap = (next_look - now) * rules.patience * (1 + kRounding);
  for (const Letter letter : kLetters) {
    if (letter == head) continue;
    const double there = arrival(index(d, letter));
    if (there > now)
      next_look = std::min(next_look, there);
    else if (duration(d, letter) <= gap && (!is_forward(letter) || fits(d, done, letter, rules)))
      return letter;
  }
  return std::nullopt;
}

bool Player::play(const Order& order, const FillRules& rules, Played& played) {
  const int length = order.row_length();
  start(order);
  wake_ups_.reset();
  for (int d = 0; d < devices_; ++d) {
    state_[at(d)].slack = rules.give_up * (1 + kRounding) - work_[at(d)];
    if (state_[at(d)].slack < 0) return false;
  }
  for (int finished = 0; finished < devices_;) {
    const int d = wake_ups_.first();
    const double now = wake_ups_.time(d);
    if (now == kNever) return false;
    Device& device = state_[at(d)];
    const int* done = &done_[at(index(d, F0))];

    const Letter head = head_letter(device, done);
    if (arrival(index(d, head)) > now || is_blocked(d, head, rules)) {
      double next_look = kNever;
      const auto letter = filler(d, head, now, rules, next_look);
      if (!letter) {
        wake_ups_.set(d, next_look);
        continue;
      }
      run(d, *letter, now, played.order);
    } else {
      run(d, head, now, played.order);
    }
    // Passes whose turn and input have come need no look at the other devices.
    while (device.ran < length) {
      const Letter next = head_letter(device, done);
      if (arrival(index(d, next)) > device.clock || is_blocked(d, next, rules)) break;
      run(d, next, device.clock, played.order);
    }
    if (device.slack < 0) return false;
    if (device.ran == length) ++finished;
    wake_ups_.set(d, device.ran == length ? kNever : device.clock);
  }
  played.span = 0;
  for (const Device& device : state_)
    played.span = std::max(played.span, device.clock - device.first);
  return true;
}

}  // namespace sluice::vee
