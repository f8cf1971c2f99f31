// The Communicator: how the ranks of one run talk. It moves raw bytes between ordered pairs of
// ranks; between one such pair messages arrive in the order they were sent. Everything else
// (barrier, broadcast, gathering) is built here, once, from send and recv. The implementations are
// threads/ (all ranks in one process), mpi/ (processes), nccl/ (on top of one of these, for GPU
// memory) and fault.h (a wrapper that breaks things on purpose).
//
// Threads: a Communicator and its requests belong to one thread, that of its rank.
// Errors: a run fails as a whole. When a rank throws, dies or hangs, every wait of every
// other rank throws a CommError that names it, and so does every later call.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/error.h"

namespace sluice {

// What went wrong between ranks, in one line that names them. guilty() is the world rank that
// failed or was waited for; code() is its exit code, or `temporary` if it died or hung.
class CommError : public std::runtime_error {
 public:
  CommError(const std::string& what, int guilty, ExitCode code = ExitCode::temporary)
      : std::runtime_error(what), guilty_(guilty), code_(code) {}
  int guilty() const { return guilty_; }
  ExitCode code() const { return code_; }

 private:
  int guilty_;
  ExitCode code_;
};

struct CommOptions {
  std::chrono::milliseconds deadline{100'000};  // of every single wait
};

// One message under way, as an implementation of the Communicator keeps it. Destroying an
// unfinished one withdraws it: afterwards its bytes are no longer touched.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
  virtual bool test() = 0;
};

// A posted send or recv. Its bytes must stay valid, and for a send unchanged, until it has been
// waited for or destroyed. An empty request counts as finished. Drop an unfinished one only when
// leaving because of an error: no message can follow it between these two ranks.
class Request {
 public:
  Request() = default;
  explicit Request(std::unique_ptr<Transfer> transfer) : transfer_(std::move(transfer)) {}
  bool empty() const { return transfer_ == nullptr; }

 private:
  friend class Communicator;
  std::unique_ptr<Transfer> transfer_;
};

// Messages of different lanes never mix, so a barrier may run while receives are posted.
enum class Lane { messages, collectives };
inline constexpr int kNumLanes = 2;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  // World rank of each rank of this communicator. Errors speak of world ranks.
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // Post a message, to or from a rank of this communicator (itself included). Neither blocks for
  // the peer. A send may finish only once its receive is posted, so a rank that sends and receives
  // posts both before it waits. `label` (an op such as 3F2) names the message in errors. Both sides
  // must give the same size, else the wait throws a CommError that names both sizes.
  Request send(int to, std::span<const std::byte> bytes, std::string_view label) {
    return post_send(Lane::messages, to, bytes, label);
  }
  Request recv(int from, std::span<std::byte> bytes, std::string_view label) {
    return post_recv(Lane::messages, from, bytes, label);
  }

  // Blocks until the message has moved, at most for the deadline, and empties the request.
  void wait(Request& request);
  void wait_all(std::span<Request> requests);
  // Whether it has moved; if so, empties the request. Does not block.
  bool test(Request& request);

  // Collectives: every rank of the communicator calls them in the same order. They block.
  void barrier(std::string_view label = "barrier");
  void broadcast(int root, std::span<std::byte> bytes, std::string_view label = "broadcast");
  // `all` has room for size() times `mine`, and is filled in rank order.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  std::string_view label = "all_gather");
  // The bytes of every rank, of any sizes, in rank order; empty except on root.
  std::vector<std::vector<std::byte>> gather(int root, std::span<const std::byte> mine,
                                             std::string_view label = "gather");

  // Whether the bytes of a message may lie in the memory of a GPU.
  virtual bool moves_device_memory() const { return false; }

  // What an implementation provides: a send or a recv on the given lane.
  virtual Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                            std::string_view label) = 0;
  virtual Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                            std::string_view label) = 0;

  // The communicator of some ranks of the world, in the order given; null on ranks not among them.
  // REQUIRES: called on the world, by every rank, in the same order with the same lists, at the
  // start. The members check that they agree. It must not outlive the world.
  virtual std::unique_ptr<Communicator> group(std::span<const int> ranks) = 0;

  // Tells all ranks why this one is about to leave, unless the run has failed already: their waits
  // throw a CommError with this rank and `cause`, and so does every later call. A rank that throws
  // while sends are under way calls it first; else the others may hear only that it dropped them.
  virtual void fail(const std::exception_ptr& cause) = 0;

  // Throws the CommError of a run that has failed. For code that waits for something other than
  // messages.
  virtual void throw_if_failed() = 0;

 protected:
  Communicator(int rank, std::vector<int> world_ranks);
  int world_rank(int rank) const;  // checked
  // The first and the last step of group(): finding the caller's place among `ranks` (-1 if none),
  // and checking that the members agree.
  int place_among(std::span<const int> ranks) const;
  static void check_agreement(Communicator& group, int number);

 private:
  int rank_;
  std::vector<int> world_ranks_;
};

// A message as error texts describe it, always from the view of the rank that waits.
struct MessageName {
  bool is_send = false;
  int rank = 0;  // world ranks
  int peer = 0;
  std::size_t bytes = 0;
  std::string label;
};

// What a rank is blocked on.
struct Blocked {
  int peer = -1;  // world rank; -1: not blocked
  std::string label;
};

// The error of a wait that reached its deadline. From the peer on, it follows the chain of who
// waits for whom. The rank at the end is the guilty one; in a deadlock, the peer.
CommError deadline_error(const MessageName& message, std::chrono::milliseconds waited,
                         const std::function<Blocked(int rank)>& blocked);
CommError size_error(const MessageName& receive, std::size_t sent_bytes);
// The exit code of a program that ends by `cause`: the error's own where it has one, temporary
// where memory ran out, else internal.
ExitCode exit_code_of(const std::exception_ptr& cause);
// The error all other ranks see when `rank` failed for `reason`. Only the first line of `reason` is
// used.
CommError failure_of(int rank, std::string_view reason, ExitCode code = ExitCode::temporary);
// The same for what `rank` threw.
CommError failure_of(int rank, const std::exception_ptr& cause);

}  // namespace sluice
