#include "sluice/comm/threads/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>

#include "sluice/base/error.h"
#include "sluice/base/say.h"

namespace sluice {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(200);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

enum class State { posted, copying, done, wrong_size };

// One side of a message. `mine` is the side's own name of it.
struct Side {
  MessageName mine;
  const std::byte* source = nullptr;         // of a send
  std::byte* target = nullptr;               // of a receive
  std::atomic<State> state = State::posted;  // changed under the mutex only
  std::optional<CommError> error;            // of wrong_size
};

// The sides of one ordered pair that have not met their other half: sends or receives, never both.
struct Channel {
  std::deque<Side*> posted;
  bool abandoned = false;  // a side was withdrawn: what follows could meet the wrong half
};

using ChannelKey = std::tuple<int, Lane, int, int>;  // group, lane, from, to

struct RankState {
  std::condition_variable changed;
  Blocked blocked;
  bool ended = false;  // returned normally
  bool left = false;   // returned or thrown: its thread can be joined
};

// What the ranks share. One mutex guards it all; it is never held while bytes are copied.
class World {
 public:
  World(int num_ranks, const ThreadsOptions& options)
      : options_(options),
        spins_(static_cast<unsigned>(num_ranks) <= std::thread::hardware_concurrency()),
        ranks_(static_cast<std::size_t>(num_ranks)) {}

  void post(Side& side, const ChannelKey& key) {
    std::unique_lock lock(mutex_);
    throw_if_failed();
    Channel& channel = channels_[key];
    if (channel.abandoned) return;  // its wait ends with the failure of the rank that withdrew
    if (channel.posted.empty() || channel.posted.front()->mine.is_send == side.mine.is_send) {
      channel.posted.push_back(&side);
      return;
    }
    Side& other = *channel.posted.front();
    channel.posted.pop_front();
    Side& send = side.mine.is_send ? side : other;
    Side& receive = side.mine.is_send ? other : side;
    if (send.mine.bytes != receive.mine.bytes) {
      const CommError error = size_error(receive.mine, send.mine.bytes);
      for (Side* half : {&send, &receive}) {
        half->state = State::wrong_size;
        half->error = error;
      }
    } else {
      send.state = receive.state = State::copying;
      lock.unlock();
      if (send.mine.bytes > 0) std::memcpy(receive.target, send.source, send.mine.bytes);
      lock.lock();
      send.state = receive.state = State::done;
    }
    rank(other.mine.rank).changed.notify_all();
  }

  void wait(Side& side) {
    const auto start = Clock::now();
    // To be woken takes longer than most waits of a good schedule last: look for a moment first.
    if (spins_)
      while (side.state != State::done && Clock::now() - start < kSpin)
        pause();
    std::unique_lock lock(mutex_);
    RankState& self = rank(side.mine.rank);
    RankState& peer = rank(side.mine.peer);
    self.blocked = {side.mine.peer, side.mine.label};
    const bool in_time = self.changed.wait_until(lock, start + options_.comm.deadline, [&] {
      return side.state == State::posted ? failure_ || peer.ended : side.state != State::copying;
    });
    // The peer is in the middle of the copy: neither deadline nor failure may free its bytes.
    self.changed.wait(lock, [&] { return side.state != State::copying; });
    if (!in_time && side.state == State::posted) {
      // At once the failure of the run: of several deadlines the first tells who waited for whom.
      const CommError error =
          deadline_error(side.mine, options_.comm.deadline, [&](int r) { return rank(r).blocked; });
      set_failure(error, side.mine.rank, std::make_exception_ptr(error));
    }
    self.blocked = {};
    finish(side, peer);
  }

  bool test(Side& side) {
    std::unique_lock lock(mutex_);
    finish(side, rank(side.mine.peer));
    return side.state == State::done;
  }

  void withdraw(Side& side, const ChannelKey& key) {
    std::unique_lock lock(mutex_);
    rank(side.mine.rank).changed.wait(lock, [&] { return side.state != State::copying; });
    if (side.state != State::posted) return;
    Channel& channel = channels_[key];
    channel.abandoned = true;
    std::erase(channel.posted, &side);
  }

  void fail(int guilty, const std::exception_ptr& cause) {
    const std::lock_guard lock(mutex_);
    set_failure(failure_of(guilty, cause), guilty, cause);
  }

  void check() {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
  }

  void end(int ended_rank) {
    const std::lock_guard lock(mutex_);
    rank(ended_rank).ended = true;
    wake_all();
  }

  void leave(int leaving_rank) {
    const std::lock_guard lock(mutex_);
    rank(leaving_rank).left = true;
    all_left_.notify_all();
  }

  // Returns when every thread can be joined; ends the process when one never can.
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    const auto everyone = [&] {
      return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& r) { return r.left; });
    };
    all_left_.wait(lock, [&] { return everyone() || failure_; });
    if (all_left_.wait_for(lock, options_.grace, everyone)) return;
    std::string hung;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!ranks_[r].left) hung += fmt::format("{}{}", hung.empty() ? "" : ", ", r);
    }
    std::string text = failure_->what();
    try {
      std::rethrow_exception(cause_);
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {  // the failure says what there is to say
    }
    say("sluice: {}\nsluice: did not stop: rank {}\n", text, hung);
    std::_Exit(static_cast<int>(failure_->code()));
  }

  // REQUIRES: all threads were joined.
  const std::exception_ptr& cause() const { return cause_; }
  int failed_rank() const { return failed_rank_; }

 private:
  RankState& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  // Only the first failure counts: it is the cause of the others. The rank that failed may add to
  // it on the way out, such as the op where it was.
  void set_failure(const CommError& error, int thrown_by, std::exception_ptr cause) {
    if (failure_ && thrown_by != failed_rank_) return;
    cause_ = std::move(cause);
    if (failure_) return;
    failure_ = error;
    failed_rank_ = thrown_by;
    wake_all();
  }

  void wake_all() {
    for (RankState& r : ranks_)
      r.changed.notify_all();
    all_left_.notify_all();
  }

  void throw_if_failed() const {
    if (failure_) throw *failure_;
  }

  void finish(Side& side, const RankState& peer) const {
    if (side.state == State::wrong_size) throw *side.error;
    if (side.state != State::posted) return;
    throw_if_failed();
    if (peer.ended) {
      throw CommError(
          fmt::format("rank {} ended before it {} \"{}\" ({} bytes), which rank {} waits for",
                      side.mine.peer, side.mine.is_send ? "received" : "sent", side.mine.label,
                      side.mine.bytes, side.mine.rank),
          side.mine.peer);
    }
  }

  const ThreadsOptions options_;
  const bool spins_;  // where every rank has a core of its own
  std::mutex mutex_;
  std::map<ChannelKey, Channel> channels_;
  std::vector<RankState> ranks_;
  std::optional<CommError> failure_;
  std::exception_ptr cause_;
  int failed_rank_ = -1;
  std::condition_variable all_left_;
};

class ThreadsTransfer : public Transfer {
 public:
  ThreadsTransfer(World& world, const ChannelKey& key, MessageName mine, const std::byte* source,
                  std::byte* target)
      : world_(world),
        key_(key),
        side_{.mine = std::move(mine), .source = source, .target = target, .error = {}} {
    world_.post(side_, key_);
  }
  ~ThreadsTransfer() override { world_.withdraw(side_, key_); }
  void wait() override { world_.wait(side_); }
  bool test() override { return world_.test(side_); }

 private:
  World& world_;
  ChannelKey key_;
  Side side_;
};

class ThreadsCommunicator : public Communicator {
 public:
  ThreadsCommunicator(World& world, int group, int rank, std::vector<int> ranks)
      : Communicator(rank, std::move(ranks)), world_(world), group_(group) {}

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    const int self = world_rank(rank());
    const int peer = world_rank(to);
    return Request(std::make_unique<ThreadsTransfer>(
        world_, ChannelKey{group_, lane, self, peer},
        MessageName{true, self, peer, bytes.size(), std::string(label)}, bytes.data(), nullptr));
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    const int self = world_rank(rank());
    const int peer = world_rank(from);
    return Request(std::make_unique<ThreadsTransfer>(
        world_, ChannelKey{group_, lane, peer, self},
        MessageName{false, self, peer, bytes.size(), std::string(label)}, nullptr, bytes.data()));
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const int place = place_among(ranks);
    const int number = ++num_groups_;
    if (place < 0) return nullptr;
    auto made = std::make_unique<ThreadsCommunicator>(world_, number, place,
                                                      std::vector(ranks.begin(), ranks.end()));
    check_agreement(*made, number);
    return made;
  }

  void fail(const std::exception_ptr& cause) override { world_.fail(world_rank(rank()), cause); }
  void throw_if_failed() override { world_.check(); }

 private:
  World& world_;
  int group_;
  int num_groups_ = 0;
};

void run_rank(World& world, int rank, std::vector<int> ranks,
              const std::function<void(Communicator&)>& body) {
  try {
    ThreadsCommunicator communicator(world, 0, rank, std::move(ranks));
    body(communicator);
    world.end(rank);
  } catch (...) {
    world.fail(rank, std::current_exception());
  }
}

[[noreturn]] void rethrow(const std::exception_ptr& cause, int rank) {
  try {
    std::rethrow_exception(cause);
  } catch (const UserError& error) {
    throw UserError(fmt::format("rank {}: {}", rank, error.what()), error.code());
  } catch (const InternalError& error) {
    throw InternalError(fmt::format("rank {}: {}", rank, error.what()));
  } catch (const CommError&) {
    throw;  // its text names the ranks already
  } catch (...) {
    throw failure_of(rank, cause);
  }
}

}  // namespace

void run_threads(int num_ranks, const ThreadsOptions& options,
                 const std::function<void(Communicator&)>& body) {
  SLUICE_CHECK(num_ranks >= 1, "{} ranks", num_ranks);
  World world(num_ranks, options);
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      run_rank(world, rank, ranks, body);
      world.leave(rank);
    });
  }
  world.wait_for_all();
  for (std::thread& thread : threads)
    thread.join();
  if (world.cause()) rethrow(world.cause(), world.failed_rank());
}

}  // namespace sluice
