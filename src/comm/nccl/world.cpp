#include "sluice/comm/nccl/world.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "sluice/base/error.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{20};  // between two looks for a failure

// The first failure of the run.
class Failure {
 public:
  void set(const CommError& error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
  }
  void throw_if_set() const {
    const std::lock_guard lock(mutex_);
    if (error_) throw *error_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<CommError> error_;
};

// One side of a message, as this rank knows it.
struct Side {
  MessageName name;
  std::byte* data = nullptr;
  std::unique_ptr<const GpuMoment> ready;
  // Under the mutex of the channel:
  std::shared_ptr<const GpuMoment> done;  // null until the stream has got it to do
  std::optional<CommError> error;

  GpuPart part() const { return {data, name.bytes, ready.get()}; }
};

// This rank's end of an ordered pair's lane. Its own thread makes all calls into NCCL, in the order
// of the posts. Such a call may block until the other end makes its own: at the first message that
// is certain, and NCCL promises for none that it is not so. Here it holds up nothing but later
// messages of the pair and lane, which come after it anyway; the other end makes the call as soon
// as its rank has posted, whatever that rank does next. So a program in which every wait ends once
// the other side was posted, which is all that the Communicator asks for, cannot hang here.
class Channel {
 public:
  // All outlive it. `peer` is a world rank.
  Channel(const Gpu& gpu, const LinkEnd& end, int peer, Failure& failure)
      : gpu_(gpu), end_(end), peer_(peer), failure_(failure), thread_([this](auto stop) {
          // Destroying the link lets streams go on with data that may not have arrived, so the
          // failure is set first. Each thread destroys its own link, at the same time as others.
          std::unique_ptr<GpuLink> link;
          try {
            run(link, stop);
          } catch (const std::exception& error) {
            failure_.set(CommError(
                fmt::format("the link with rank {} broke: {}", peer_, error.what()), peer_));
          }
        }) {}

  void post(std::shared_ptr<Side> side) {
    {
      const std::lock_guard lock(mutex_);
      (side->name.is_send ? sends_ : receives_).push_back(std::move(side));
    }
    changed_.notify_all();
  }

  // When it will have moved. Blocks until that is known.
  const GpuMoment& await(const Side& side, milliseconds deadline, Communicator& control) {
    const auto end = Clock::now() + deadline;
    std::unique_lock lock(mutex_);
    while (!side.done) {
      if (side.error) throw *side.error;
      failure_.throw_if_set();
      control.throw_if_failed();
      if (Clock::now() >= end)
        throw deadline_error(side.name, deadline, [](int) { return Blocked{}; });
      changed_.wait_for(lock, kLook);
    }
    return *side.done;
  }

  bool has_moved(const Side& side) {
    const std::lock_guard lock(mutex_);
    if (side.error) throw *side.error;
    failure_.throw_if_set();
    return side.done && side.done->passed();
  }

  // Blocks until the GPU is through with all that was posted.
  void drain(milliseconds deadline) {
    const auto end = Clock::now() + deadline;
    const auto busy = [&] {
      const std::lock_guard lock(mutex_);
      return !sends_.empty() || !receives_.empty() || (last_ && !last_->passed());
    };
    while (busy()) {
      failure_.throw_if_set();
      if (Clock::now() >= end)
        throw CommError(fmt::format("the GPU has not finished its messages with rank {} after "
                                    "{:.1f} s",
                                    peer_, static_cast<double>(deadline.count()) / 1000),
                        peer_);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  // Of several, all are asked before one is joined: a stream may wait for what another one does.
  void ask_to_stop() { thread_.request_stop(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  // What moves next: one side or, between a rank and itself, two that match.
  struct Job {
    std::shared_ptr<Side> send, receive;
  };

  bool has_job() const {
    return end_.size == 1 ? !sends_.empty() && !receives_.empty()
                          : !sends_.empty() || !receives_.empty();
  }

  Job next_job() const {
    Job job;
    if (!sends_.empty()) job.send = sends_.front();
    if (!receives_.empty()) job.receive = receives_.front();
    return job;
  }

  void run(std::unique_ptr<GpuLink>& link, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!changed_.wait_for(lock, stop, 5 * kLook, [&] { return has_job(); })) {
        const std::string trouble = link ? link->trouble() : "";
        if (!trouble.empty()) throw std::runtime_error(trouble);
        continue;
      }
      const Job job = next_job();
      lock.unlock();
      std::shared_ptr<const GpuMoment> done;
      std::optional<CommError> error;
      if (job.send && job.receive && job.send->name.bytes != job.receive->name.bytes) {
        error = size_error(job.receive->name, job.send->name.bytes);
      } else {
        if (!link) link = gpu_.connect(end_, stop);
        if (link) done = link->move(part(job.send), part(job.receive), stop);
        if (!done) return;
      }
      lock.lock();
      for (const auto* side : {&job.send, &job.receive}) {
        if (!*side) continue;
        (*side)->done = done;
        (*side)->error = error;
      }
      if (job.send) sends_.pop_front();
      if (job.receive) receives_.pop_front();
      last_ = done;
      changed_.notify_all();
    }
  }

  static std::optional<GpuPart> part(const std::shared_ptr<Side>& side) {
    return side ? std::optional(side->part()) : std::nullopt;
  }

  const Gpu& gpu_;
  const LinkEnd end_;
  const int peer_;
  Failure& failure_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Side>> sends_, receives_;  // not yet given to the stream
  std::shared_ptr<const GpuMoment> last_;
  std::jthread thread_;
};

using ChannelKey = std::tuple<int, Lane, int, int>;  // group, lane, from, to

// What the communicators of a rank share. It belongs to the rank's thread.
class GpuWorld {
 public:
  GpuWorld(const Gpu& gpu, milliseconds deadline) : gpu_(gpu), deadline_(deadline) {}
  ~GpuWorld() { stop(); }

  const Gpu& gpu() const { return gpu_; }
  milliseconds deadline() const { return deadline_; }
  Failure& failure() { return failure_; }
  int new_group() { return num_groups_++; }

  Channel& channel(const ChannelKey& key, const LinkEnd& end, int peer) {
    std::unique_ptr<Channel>& made = channels_[key];
    if (!made) made = std::make_unique<Channel>(gpu_, end, peer, failure_);
    return *made;
  }

  void drain() {
    for (auto& [key, channel] : channels_)
      channel->drain(deadline_);
    failure_.throw_if_set();
  }

  void stop() {
    for (auto& [key, channel] : channels_)
      channel->ask_to_stop();
    for (auto& [key, channel] : channels_)
      channel->join();
  }

 private:
  const Gpu& gpu_;
  const milliseconds deadline_;
  Failure failure_;
  std::map<ChannelKey, std::unique_ptr<Channel>> channels_;
  int num_groups_ = 0;
};

// A message of GPU memory. A message of `control`, in the same order, announces its size; the
// receiver compares that with its own.
class GpuTransfer : public Transfer {
 public:
  GpuTransfer(GpuWorld& world, Communicator& control, Channel& channel, Lane lane, int peer,
              std::shared_ptr<Side> side)
      : world_(world), control_(control), channel_(channel), side_(std::move(side)) {
    const auto bytes = std::as_writable_bytes(std::span(&announced_, 1));
    const MessageName& name = side_->name;
    if (name.is_send) announced_ = name.bytes;
    announcement_ = name.is_send ? control_.post_send(lane, peer, bytes, name.label)
                                 : control_.post_recv(lane, peer, bytes, name.label);
    channel_.post(side_);
  }

  ~GpuTransfer() override {
    if (finished_) return;
    // A run that goes on without a message has failed. Other streams may wait for this one and it
    // for them, so that all of them are ended.
    world_.failure().set(failure_of(side_->name.rank, "a message was dropped"));
    world_.stop();
  }

  void wait() override {
    control_.wait(announcement_);
    compare();
    channel_.await(*side_, world_.deadline(), control_).precede();
    finished_ = true;
  }

  bool test() override {
    if (!control_.test(announcement_)) return false;
    compare();
    finished_ = channel_.has_moved(*side_);
    return finished_;
  }

 private:
  void compare() const {
    if (announced_ != side_->name.bytes) throw size_error(side_->name, announced_);
  }

  GpuWorld& world_;
  Communicator& control_;
  Channel& channel_;
  std::shared_ptr<Side> side_;
  std::uint64_t announced_ = 0;
  Request announcement_;
  bool finished_ = false;
};

class GpuCommunicator : public Communicator {
 public:
  GpuCommunicator(GpuWorld& world, Communicator& control, std::unique_ptr<Communicator> owned)
      : Communicator(control.rank(), control.world_ranks()),
        world_(world),
        control_(control),
        owned_(std::move(owned)),
        group_(world.new_group()) {
    std::vector<LinkId> mine;
    for (int n = 0; n < size() * kNumLanes; ++n)
      mine.push_back(world_.gpu().new_id());
    ids_.resize(mine.size() * world_ranks().size());
    control_.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(ids_)),
                        "links");
  }

  bool moves_device_memory() const override { return true; }

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    world_.failure().throw_if_set();
    if (!on_gpu(bytes)) return control_.post_send(lane, to, bytes, label);
    // The side of a send is not written to.
    return post(lane, to, true, const_cast<std::byte*>(bytes.data()), bytes.size(), label);
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    world_.failure().throw_if_set();
    if (!on_gpu(bytes)) return control_.post_recv(lane, from, bytes, label);
    return post(lane, from, false, bytes.data(), bytes.size(), label);
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    std::unique_ptr<Communicator> made = control_.group(ranks);
    if (!made) return nullptr;
    Communicator& control = *made;
    return std::make_unique<GpuCommunicator>(world_, control, std::move(made));
  }

  void fail(const std::exception_ptr& cause) override { control_.fail(cause); }

  void throw_if_failed() override {
    world_.failure().throw_if_set();
    control_.throw_if_failed();
  }

 private:
  bool on_gpu(std::span<const std::byte> bytes) const {
    return !bytes.empty() && world_.gpu().holds(bytes.data());
  }

  Request post(Lane lane, int peer, bool is_send, std::byte* data, std::size_t bytes,
               std::string_view label) {
    auto side = std::make_shared<Side>();
    side->name = {is_send, world_rank(rank()), world_rank(peer), bytes, std::string(label)};
    side->data = data;
    side->ready = world_.gpu().now();
    return Request(std::make_unique<GpuTransfer>(world_, control_, channel(lane, peer, is_send),
                                                 lane, peer, std::move(side)));
  }

  Channel& channel(Lane lane, int peer, bool is_send) {
    const int from = is_send ? rank() : peer, to = is_send ? peer : rank();
    const auto place = [&](int index) { return static_cast<std::size_t>(index); };
    const LinkId& id =
        ids_[(place(from) * kNumLanes + static_cast<std::size_t>(lane)) * place(size()) +
             place(to)];
    const LinkEnd end{id, is_send || from == to ? 0 : 1, from == to ? 1 : 2};
    return world_.channel({group_, lane, from, to}, end, world_rank(peer));
  }

  GpuWorld& world_;
  Communicator& control_;
  std::unique_ptr<Communicator> owned_;  // control_, where this is a group
  const int group_;
  std::vector<LinkId> ids_;  // by sender, lane and receiver
};

// A barrier that waits longer than a message may: a rank that still waits for a message at its
// deadline knows more, and reports first.
void meet_at_the_end(Communicator& control, milliseconds deadline) {
  std::vector<Request> requests;
  for (int peer = 0; peer < control.size(); ++peer) {
    if (peer == control.rank()) continue;
    requests.push_back(control.post_recv(Lane::collectives, peer, {}, "end of the links"));
    requests.push_back(control.post_send(Lane::collectives, peer, {}, "end of the links"));
  }
  const auto end = Clock::now() + 2 * deadline;
  while (Clock::now() < end) {
    std::erase_if(requests, [&](Request& request) { return control.test(request); });
    if (requests.empty()) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
  control.wait_all(requests);
}

}  // namespace

void run_on_gpus(Communicator& control, const Gpu& gpu, const CommOptions& options,
                 const std::function<void(Communicator&)>& body) {
  GpuWorld world(gpu, options.deadline);
  try {
    GpuCommunicator communicator(world, control, nullptr);
    body(communicator);
    world.drain();
  } catch (...) {
    control.fail(std::current_exception());  // before the links are cut
    throw;
  }
  // No end of a link goes while the other one may be at work.
  meet_at_the_end(control, options.deadline);
}

}  // namespace sluice
