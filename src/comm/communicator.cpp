#include "sluice/comm/communicator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <set>

#include "sluice/base/error.h"

namespace sluice {

namespace {

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

Communicator::Communicator(int rank, std::vector<int> world_ranks)
    : rank_(rank), world_ranks_(std::move(world_ranks)) {
  SLUICE_CHECK(rank_ >= 0 && rank_ < size(), "rank {} of {}", rank_, size());
}

int Communicator::world_rank(int rank) const {
  SLUICE_CHECK(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
  return world_ranks_[static_cast<std::size_t>(rank)];
}

void Communicator::wait(Request& request) {
  if (request.empty()) return;
  request.transfer_->wait();
  request.transfer_.reset();
}

void Communicator::wait_all(std::span<Request> requests) {
  for (Request& request : requests)
    wait(request);
}

bool Communicator::test(Request& request) {
  if (request.empty()) return true;
  if (!request.transfer_->test()) return false;
  request.transfer_.reset();
  return true;
}

// Everyone tells everyone, rather than a tree: whoever waits, waits for the very rank that is
// missing, and can name it.
void Communicator::barrier(std::string_view label) {
  std::vector<Request> requests;
  for (int step = 1; step < size(); ++step) {
    requests.push_back(post_recv(Lane::collectives, (rank_ + size() - step) % size(), {}, label));
    requests.push_back(post_send(Lane::collectives, (rank_ + step) % size(), {}, label));
  }
  wait_all(requests);
}

void Communicator::broadcast(int root, std::span<std::byte> bytes, std::string_view label) {
  std::vector<Request> requests;
  if (rank_ != root) {
    requests.push_back(post_recv(Lane::collectives, root, bytes, label));
  } else {
    for (int to = 0; to < size(); ++to) {
      if (to != root) requests.push_back(post_send(Lane::collectives, to, bytes, label));
    }
  }
  wait_all(requests);
}

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                              std::string_view label) {
  SLUICE_CHECK(all.size() == mine.size() * world_ranks_.size(), "{} bytes for {} ranks of {}",
               all.size(), size(), mine.size());
  const auto part = [&](int rank) {
    return all.subspan(static_cast<std::size_t>(rank) * mine.size(), mine.size());
  };
  std::vector<Request> requests;
  for (int step = 1; step < size(); ++step) {
    const int from = (rank_ + size() - step) % size();
    requests.push_back(post_recv(Lane::collectives, from, part(from), label));
    requests.push_back(post_send(Lane::collectives, (rank_ + step) % size(), mine, label));
  }
  copy(mine, part(rank_));
  wait_all(requests);
}

std::vector<std::vector<std::byte>> Communicator::gather(int root, std::span<const std::byte> mine,
                                                         std::string_view label) {
  std::uint64_t num_bytes = mine.size();
  std::vector<std::vector<std::byte>> all;
  std::vector<Request> requests;
  if (rank_ != root) {
    requests.push_back(post_send(Lane::collectives, root, bytes_of(num_bytes), label));
    requests.push_back(post_send(Lane::collectives, root, mine, label));
    wait_all(requests);
    return all;
  }
  std::vector<std::uint64_t> sizes(world_ranks_.size(), num_bytes);
  for (int from = 0; from < size(); ++from) {
    if (from == root) continue;
    requests.push_back(
        post_recv(Lane::collectives, from, bytes_of(sizes[static_cast<std::size_t>(from)]), label));
  }
  wait_all(requests);
  requests.clear();
  for (const std::uint64_t bytes : sizes)
    all.emplace_back(bytes);
  for (int from = 0; from < size(); ++from) {
    if (from == root) continue;
    requests.push_back(
        post_recv(Lane::collectives, from, all[static_cast<std::size_t>(from)], label));
  }
  copy(mine, all[static_cast<std::size_t>(root)]);
  wait_all(requests);
  return all;
}

int Communicator::place_among(std::span<const int> ranks) const {
  for (int i = 0; i < size(); ++i) {
    SLUICE_CHECK(world_rank(i) == i, "a group is made from the world, not from a group");
  }
  SLUICE_CHECK(!ranks.empty(), "a group without ranks");
  const std::set<int> distinct(ranks.begin(), ranks.end());
  SLUICE_CHECK(distinct.size() == ranks.size(), "a rank is twice in a group of {}", ranks.size());
  SLUICE_CHECK(*distinct.begin() >= 0 && *distinct.rbegin() < size(), "ranks {} to {} of {}",
               *distinct.begin(), *distinct.rbegin(), size());
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  return place == ranks.end() ? -1 : static_cast<int>(place - ranks.begin());
}

void Communicator::check_agreement(Communicator& group, int number) {
  std::vector<int> mine = group.world_ranks();
  mine.push_back(number);
  std::vector<int> all(mine.size() * group.world_ranks().size());
  const std::string label = fmt::format("group {}", number);
  group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), label);
  for (std::size_t i = 0; i < all.size(); ++i) {
    SLUICE_CHECK(all[i] == mine[i % mine.size()],
                 "{} differs between ranks {} and {}: all ranks make all groups in one order",
                 label, group.world_rank(group.rank()),
                 group.world_rank(static_cast<int>(i / mine.size())));
  }
}

CommError deadline_error(const MessageName& message, std::chrono::milliseconds waited,
                         const std::function<Blocked(int rank)>& blocked) {
  std::string text =
      fmt::format("rank {} waited {:.1f} s for rank {} to {} \"{}\" ({} bytes)", message.rank,
                  static_cast<double>(waited.count()) / 1000, message.peer,
                  message.is_send ? "receive" : "send", message.label, message.bytes);
  std::set<int> seen = {message.rank};
  int guilty = message.peer;
  while (seen.insert(guilty).second) {
    const Blocked next = blocked(guilty);
    if (next.peer < 0) {
      text += fmt::format(
          "; rank {} waits for nobody: it hangs, or needs more than "
          "comm.train_timeout_seconds",
          guilty);
      return CommError(text, guilty);
    }
    text += fmt::format("; rank {} waits for rank {} (\"{}\")", guilty, next.peer, next.label);
    guilty = next.peer;
  }
  text += "; these ranks wait for each other: a deadlock";
  return CommError(text, message.peer);
}

CommError size_error(const MessageName& receive, std::size_t sent_bytes) {
  return CommError(
      fmt::format("rank {} sent {} bytes as \"{}\" and rank {} expected {}", receive.peer,
                  sent_bytes, receive.label, receive.rank, receive.bytes),
      receive.peer, ExitCode::internal);
}

ExitCode exit_code_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const UserError& error) {
    return error.code();
  } catch (const CommError& error) {
    return error.code();
  } catch (const std::bad_alloc&) {
    return ExitCode::temporary;
  } catch (...) {
    return ExitCode::internal;
  }
}

CommError failure_of(int rank, std::string_view reason, ExitCode code) {
  // What follows the first line is for who reports the error itself.
  reason = reason.substr(0, reason.find('\n'));
  return CommError(fmt::format("rank {} failed: {}", rank, reason), rank, code);
}

CommError failure_of(int rank, const std::exception_ptr& cause) {
  const ExitCode code = exit_code_of(cause);
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return failure_of(rank, error.what(), code);
  } catch (...) {
    return failure_of(rank, "it threw something that is not a std::exception", code);
  }
}

}  // namespace sluice
