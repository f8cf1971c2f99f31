#include "sluice/comm/mpi/world.h"

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "sluice/base/error.h"
#include "sluice/run/launch.h"

namespace sluice {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kControlInterval{2};
constexpr milliseconds kWithdrawLimit{100};
constexpr milliseconds kFarewellLimit{50};

std::string mpi_text(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  return std::string(text.data(), static_cast<std::size_t>(length));
}

}  // namespace

MpiWorld::MpiWorld(const MpiOptions& options, MpiReport report)
    : options_(options), report_(std::move(report)) {
  SLUICE_CHECK(options_.silence >= 3 * options_.heartbeat, "silence {} ms, heartbeat {} ms",
               options_.silence.count(), options_.heartbeat.count());
  const std::optional<Launch> launch =
      discover_launch([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  check_launch(launch, rank_, size_);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw user_error(
        "comm.backend is mpi: this MPI was built without support for threads; "
        "install one with MPI_THREAD_MULTIPLE, such as Debian's OpenMPI");
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &messages_);
  MPI_Comm_dup(MPI_COMM_WORLD, &control_);
  MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  int* tag_bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(messages_, MPI_TAG_UB, &tag_bound, &found);
  num_tags_ = found != 0 ? *tag_bound : 32767;  // the least that the standard promises

  MPI_Irecv(&incoming_pulse_, sizeof(Pulse), MPI_BYTE, MPI_ANY_SOURCE, kPulseTag, control_,
            &pulse_request_);
  MPI_Irecv(&incoming_note_, sizeof(Note), MPI_BYTE, MPI_ANY_SOURCE, kNoteTag, control_,
            &note_request_);
  MPI_Barrier(control_);
  peers_.resize(static_cast<std::size_t>(size_));
  const auto now = Clock::now();
  for (Peer& peer : peers_)
    peer.heard = now;
  last_control_ = next_control_ = next_pulse_ = now;
  progress_ = std::thread([this] { run_progress(); });
}

MpiWorld::~MpiWorld() { stop_progress(); }

void MpiWorld::post_send(MpiMessage& message, std::span<const std::byte> bytes) {
  SLUICE_CHECK(bytes.size() <= INT_MAX, "a message of {} bytes; MPI sends {} at once", bytes.size(),
               INT_MAX);
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE,
                              message.name.peer, message.tag, messages_, &request);
  if (error != MPI_SUCCESS) {
    set_failure(mpi_error(message, error));
    throw_if_failed();
  }
  active_.push_back({request, &message});
  ++num_active_sends_;
}

void MpiWorld::post_recv(MpiMessage& message) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  unmatched_[{message.name.peer, message.channel}].push_back(&message);
}

void MpiWorld::wait(MpiMessage& message) {
  std::unique_lock lock(mutex_);
  blocked_ = {message.name.peer, message.name.label};
  const milliseconds deadline = options_.comm.deadline;
  poll_until(lock, deadline, [&] { return message.done || failure_; });
  if (!message.done && !failure_) {
    set_failure(deadline_error(message.name, deadline, [&](int r) {
      return r == rank_ ? blocked_ : peers_[static_cast<std::size_t>(r)].blocked;
    }));
  }
  blocked_ = {};
  if (message.error) throw *message.error;
  if (!message.done) throw_if_failed();
}

bool MpiWorld::test(MpiMessage& message) {
  const std::lock_guard lock(mutex_);
  poll();
  if (message.error) throw *message.error;
  if (!message.done) throw_if_failed();
  return message.done;
}

void MpiWorld::withdraw(MpiMessage& message) {
  std::unique_lock lock(mutex_);
  if (message.done) return;
  const auto waiting = unmatched_.find({message.name.peer, message.channel});
  if (!message.name.is_send && waiting != unmatched_.end()) {
    if (std::erase(waiting->second, &message) > 0) return;
  }
  if (!muted_) poll_until(lock, kWithdrawLimit, [&] { return message.done; });
  if (message.done) return;
  if (!muted_) {
    // The exception that brought us here is not known yet, and afterwards nothing can be told.
    if (!failure_) {
      tell(failure_of(rank_, fmt::format("it dropped \"{}\" with rank {} after an error of its own",
                                         message.name.label, message.name.peer)));
    }
    poll_until(lock, kFarewellLimit, [&] { return notes_sent_ || note_sends_.empty(); });
  }
  muted_ = true;
  std::erase_if(active_, [&](const Active& active) { return active.message == &message; });
}

void MpiWorld::poll() {
  if (muted_) return;
  poll_messages();
  const auto now = Clock::now();
  if (now < next_control_) return;
  next_control_ = now + kControlInterval;
  poll_control();
  if (now >= next_pulse_) {
    next_pulse_ = now + options_.heartbeat;
    send_pulses(now);
  }
  listen_for_silence(now);
}

void MpiWorld::match_receives() {
  for (auto& [key, queue] : unmatched_) {
    while (!queue.empty()) {
      MpiMessage& receive = *queue.front();
      int found = 0;
      MPI_Message arrived = MPI_MESSAGE_NULL;
      MPI_Status status;
      const int error =
          MPI_Improbe(receive.name.peer, receive.tag, messages_, &found, &arrived, &status);
      if (error != MPI_SUCCESS) return set_failure(mpi_error(receive, error));
      if (found == 0) break;
      queue.pop_front();
      match(receive, arrived, status);
    }
  }
  std::erase_if(unmatched_, [](const auto& entry) { return entry.second.empty(); });
}

void MpiWorld::match(MpiMessage& receive, MPI_Message arrived, const MPI_Status& status) {
  int num_bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &num_bytes);
  if (static_cast<std::size_t>(num_bytes) != receive.name.bytes) {
    receive.error = size_error(receive.name, static_cast<std::size_t>(num_bytes));
    receive.done = true;
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = MPI_Imrecv(receive.target.data(), num_bytes, MPI_BYTE, &arrived, &request);
  if (error != MPI_SUCCESS) return set_failure(mpi_error(receive, error));
  active_.push_back({request, &receive});
}

void MpiWorld::poll_messages() {
  match_receives();
  if (active_.empty()) return;
  requests_.clear();
  for (const Active& active : active_)
    requests_.push_back(active.request);
  indices_.resize(active_.size());
  statuses_.resize(active_.size());
  int num_done = 0;
  const int error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_done,
                                 indices_.data(), statuses_.data());
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) {
    return set_failure(failure_of(rank_, mpi_text(error)));
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::max(num_done, 0)); ++i) {
    MpiMessage& message = *active_[static_cast<std::size_t>(indices_[i])].message;
    message.done = true;
    if (message.name.is_send) --num_active_sends_;
    if (error == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_SUCCESS) {
      message.error = mpi_error(message, statuses_[i].MPI_ERROR);
    }
  }
  if (num_done > 0) std::erase_if(active_, [](const Active& a) { return a.message->done; });
}

CommError MpiWorld::mpi_error(const MpiMessage& message, int error) const {
  return failure_of(rank_, fmt::format("\"{}\" with rank {}: {}", message.name.label,
                                       message.name.peer, mpi_text(error)));
}

bool MpiWorld::poll_until(std::unique_lock<std::mutex>& lock, milliseconds limit,
                          const std::function<bool()>& condition) {
  const auto end = Clock::now() + limit;
  waiting_ = true;
  for (int round = 0; !condition(); ++round) {
    poll();
    if (condition() || Clock::now() >= end) break;
    // Short waits are answered at once; in long ones the core belongs to whoever computes.
    lock.unlock();
    if (round < 50) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(microseconds(20));
    }
    lock.lock();
  }
  waiting_ = false;
  return condition();
}

}  // namespace sluice
