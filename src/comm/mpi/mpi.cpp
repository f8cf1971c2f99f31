#include "sluice/comm/mpi/mpi.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/comm/mpi/world.h"

namespace sluice {

namespace {

// Groups and lanes share MPI's tags: each has its own range, in which the messages of a pair count
// up and begin again at its end. MPI keeps equal tags in order, so a repeated tag is harmless.
constexpr int kMaxGroups = 1024;

class MpiTransfer : public Transfer {
 public:
  MpiTransfer(MpiWorld& world, MpiMessage message, std::span<const std::byte> sent)
      : world_(world), message_(std::move(message)) {
    if (message_.name.is_send) {
      world_.post_send(message_, sent);
    } else {
      world_.post_recv(message_);
    }
  }
  ~MpiTransfer() override { world_.withdraw(message_); }
  void wait() override { world_.wait(message_); }
  bool test() override { return world_.test(message_); }

 private:
  MpiWorld& world_;
  MpiMessage message_;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MpiWorld& world, const MpiOptions& options, int group, int rank,
                  std::vector<int> ranks)
      : Communicator(rank, std::move(ranks)),
        world_(world),
        options_(options),
        group_(group),
        pairs_(world_ranks().size()) {
    SLUICE_CHECK(group < kMaxGroups, "group {}: MPI's tags are shared by {}", group, kMaxGroups);
  }

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    const MessageName name{true, world_.rank(), world_rank(to), bytes.size(), std::string(label)};
    MpiMessage message = make_message(name, lane, pair(to).num_sent);
    return Request(std::make_unique<MpiTransfer>(world_, std::move(message), bytes));
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    const MessageName name{false, world_.rank(), world_rank(from), bytes.size(),
                           std::string(label)};
    MpiMessage message = make_message(name, lane, pair(from).num_received);
    message.target = bytes;
    return Request(std::make_unique<MpiTransfer>(world_, std::move(message), bytes));
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const int place = place_among(ranks);
    const int number = ++num_groups_;
    if (place < 0) return nullptr;
    auto made = std::make_unique<MpiCommunicator>(world_, options_, number, place,
                                                  std::vector(ranks.begin(), ranks.end()));
    check_agreement(*made, number);
    return made;
  }

  void fail(const std::exception_ptr& cause) override {
    world_.fail(failure_of(world_.rank(), cause));
  }

  void throw_if_failed() override { world_.check(); }

 private:
  struct Pair {  // messages so far, by lane
    std::array<int, kNumLanes> num_sent{};
    std::array<int, kNumLanes> num_received{};
  };
  Pair& pair(int rank) { return pairs_[static_cast<std::size_t>(rank)]; }

  MpiMessage make_message(const MessageName& name, Lane lane,
                          std::array<int, kNumLanes>& counts) const {
    const int range = world_.num_tags() / (kMaxGroups * kNumLanes);
    const int num_used = options_.num_tags > 0 ? std::min(options_.num_tags, range) : range;
    int& count = counts[static_cast<std::size_t>(lane)];
    MpiMessage message;
    message.name = name;
    message.channel = group_ * kNumLanes + static_cast<int>(lane);
    message.tag = message.channel * range + count;
    count = (count + 1) % num_used;
    return message;
  }

  MpiWorld& world_;
  const MpiOptions& options_;
  int group_;
  int num_groups_ = 0;
  std::vector<Pair> pairs_;
};

}  // namespace

bool has_mpi() { return true; }

int run_mpi(const MpiOptions& options, const std::function<void(Communicator&)>& body,
            const MpiReport& report) {
  std::unique_ptr<MpiWorld> world;
  try {
    world = std::make_unique<MpiWorld>(options, report);
  } catch (...) {
    return report(std::current_exception(), true);
  }
  try {
    std::vector<int> ranks(static_cast<std::size_t>(world->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    MpiCommunicator communicator(*world, options, 0, world->rank(), std::move(ranks));
    body(communicator);
    world->finish();
    return 0;
  } catch (...) {
    world->fail(failure_of(world->rank(), std::current_exception()));
    return world->end_badly(std::current_exception());
  }
}

}  // namespace sluice
