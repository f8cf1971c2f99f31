#include "comm/fake_gpu.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>

namespace sluice::test {

using std::chrono::microseconds;

// Does what it is given in order, each a moment late.
class FakeStream {
 public:
  FakeStream() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

  void run(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }

 private:
  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !queue_.empty(); })) {
      const std::function<void()> next = queue_.front();
      lock.unlock();
      std::this_thread::sleep_for(microseconds(20));
      next();
      lock.lock();
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> queue_;
  std::jthread thread_;
};

namespace {

struct FakeMoment : GpuMoment {
  explicit FakeMoment(FakeStream& of) : current(of) {}
  void precede() const override { hold(current); }
  bool passed() const override { return *state; }
  void hold(FakeStream& stream) const {
    stream.run([seen = state] {
      while (!*seen)
        std::this_thread::sleep_for(microseconds(10));
    });
  }
  void record(FakeStream& stream) const {
    stream.run([seen = state] { *seen = true; });
  }

  FakeStream& current;  // of the rank
  std::shared_ptr<std::atomic<bool>> state = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

// The two ends of a link. Counts go up as each end connects and moves.
struct Wire {
  std::atomic<int> connected = 0;
  std::atomic<int> moves[2] = {0, 0};
  std::atomic<bool> ended = false;
  std::mutex mutex;
  const GpuPart* leaving = nullptr;  // the part of the sender's stream
};

class FakeWires {
 public:
  FakeWires(int moves, bool seen) : broken_after(moves), ends_seen(seen) {}

  const int broken_after;
  const bool ends_seen;

  LinkId new_id() {
    LinkId id{};
    const int number = ++num_ids_;
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }
  std::shared_ptr<Wire> wire(const LinkId& id) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Wire>& made = wires_[id];
    if (!made) made = std::make_shared<Wire>();
    return made;
  }

 private:
  std::atomic<int> num_ids_ = 0;
  std::mutex mutex_;
  std::map<LinkId, std::shared_ptr<Wire>> wires_;
};

std::shared_ptr<FakeWires> fake_wires(int broken_after, bool ends_seen) {
  return std::make_shared<FakeWires>(broken_after, ends_seen);
}

namespace {

bool wait_for(const std::stop_token& stop, const std::function<bool()>& condition) {
  while (!condition()) {
    if (stop.stop_requested()) return false;
    std::this_thread::sleep_for(microseconds(10));
  }
  return true;
}

class FakeLink : public GpuLink {
 public:
  FakeLink(std::shared_ptr<Wire> wire, const LinkEnd& end, FakeStream& current,
           const FakeWires& wires)
      : wire_(std::move(wire)), end_(end), current_(current), wires_(wires) {}
  ~FakeLink() override {
    wire_->ended = true;
    stream_.synchronize();
  }

  std::shared_ptr<const GpuMoment> move(const std::optional<GpuPart>& out,
                                        const std::optional<GpuPart>& in,
                                        const std::stop_token& stop) override {
    const int number = ++wire_->moves[end_.place];
    if (number > wires_.broken_after) throw std::runtime_error("the cable is out");
    if (end_.size == 2 && !wait_for(stop, [&] { return wire_->moves[1 - end_.place] >= number; }))
      return nullptr;
    for (const std::optional<GpuPart>* part : {&out, &in})
      if (*part) static_cast<const FakeMoment&>(*(*part)->ready).hold(stream_);
    stream_.run([wire = wire_, out, in] { carry(*wire, out, in); });
    auto done = std::make_shared<FakeMoment>(current_);
    done->record(stream_);
    return done;
  }

  std::string trouble() override {
    return wires_.ends_seen && wire_->ended ? "the other end has gone" : "";
  }

 private:
  static void copy(const GpuPart& from, const GpuPart& to) {
    std::memcpy(to.data, from.data, std::min(from.bytes, to.bytes));
  }

  // As a stream does it: who sends offers and waits until it is taken.
  static void carry(Wire& wire, const std::optional<GpuPart>& out,
                    const std::optional<GpuPart>& in) {
    if (out && in) return copy(*out, *in);
    if (out) {
      const std::lock_guard lock(wire.mutex);
      wire.leaving = &*out;
    }
    while (!wire.ended) {
      {
        const std::lock_guard lock(wire.mutex);
        if (out && wire.leaving == nullptr) return;
        if (in && wire.leaving != nullptr) {
          copy(*wire.leaving, *in);
          wire.leaving = nullptr;
          return;
        }
      }
      std::this_thread::sleep_for(microseconds(10));
    }
    const std::lock_guard lock(wire.mutex);
    if (out) wire.leaving = nullptr;
  }

  std::shared_ptr<Wire> wire_;
  const LinkEnd end_;
  FakeStream& current_;
  const FakeWires& wires_;
  FakeStream stream_;
};

}  // namespace

struct FakeGpu::Memory {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> blocks;
};

FakeGpu::FakeGpu(std::shared_ptr<FakeWires> wires)
    : wires_(std::move(wires)),
      memory_(std::make_shared<Memory>()),
      stream_(std::make_shared<FakeStream>()) {}

FakeGpu::~FakeGpu() { synchronize(); }

bool FakeGpu::holds(const std::byte* memory) const {
  const std::lock_guard lock(memory_->mutex);
  auto after = memory_->blocks.upper_bound(memory);
  if (after == memory_->blocks.begin()) return false;
  --after;
  return memory < after->first + after->second;
}

std::unique_ptr<const GpuMoment> FakeGpu::now() const {
  auto moment = std::make_unique<FakeMoment>(*stream_);
  moment->record(*stream_);
  return moment;
}

LinkId FakeGpu::new_id() const { return wires_->new_id(); }

std::unique_ptr<GpuLink> FakeGpu::connect(const LinkEnd& end, const std::stop_token& stop) const {
  const std::shared_ptr<Wire> wire = wires_->wire(end.id);
  ++wire->connected;
  if (!wait_for(stop, [&] { return wire->connected == end.size; })) return nullptr;
  return std::make_unique<FakeLink>(wire, end, *stream_, *wires_);
}

std::shared_ptr<std::byte> FakeGpu::allocate(std::size_t bytes) {
  auto* block = new std::byte[bytes];
  const std::lock_guard lock(memory_->mutex);
  memory_->blocks[block] = bytes;
  // The stream may still be at work on it when it is let go of.
  return {block, [memory = memory_, stream = std::weak_ptr(stream_)](std::byte* freed) {
            if (const auto live = stream.lock()) live->synchronize();
            const std::lock_guard freeing(memory->mutex);
            memory->blocks.erase(freed);
            delete[] freed;
          }};
}

void FakeGpu::run(std::function<void()> work) { stream_->run(std::move(work)); }
void FakeGpu::synchronize() { stream_->synchronize(); }

void FakeGpu::to_device(std::byte* to, const std::byte* from, std::size_t bytes) {
  run([=] { std::memcpy(to, from, bytes); });
}

void FakeGpu::to_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  run([=] { std::memcpy(to, from, bytes); });
  synchronize();
}

}  // namespace sluice::test
