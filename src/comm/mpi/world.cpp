#include "comm/mpi/world.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "comm/launch.h"

namespace sluice {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kPulseTag = 1;
constexpr int kNoteTag = 2;

// A pending send may need us for every fragment; with receives alone a slower beat will do.
constexpr microseconds kBusyInterval{100};
constexpr microseconds kIdleInterval{1000};
constexpr milliseconds kControlInterval{2};
// How long the rank's own thread gets to report a failure before the progress thread does.
constexpr milliseconds kReportGrace{150};
// How long a failed rank stays, so that all others hear of the failure and report it.
constexpr milliseconds kLinger{300};
constexpr milliseconds kWithdrawLimit{100};
constexpr milliseconds kFarewellLimit{50};

std::string mpi_text(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  return std::string(text.data(), static_cast<std::size_t>(length));
}

template <std::size_t N>
void copy_text(const std::string& from, std::array<char, N>& to) {
  to.fill('\0');
  std::copy_n(from.begin(), std::min(from.size(), N - 1), to.begin());
}

}  // namespace

MpiWorld::MpiWorld(const MpiOptions& options, std::function<int(std::exception_ptr)> report)
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
    tell(failure_of(rank_, fmt::format("it gave up \"{}\" with rank {} on an error of its own",
                                       message.name.label, message.name.peer)));
    poll_until(lock, kFarewellLimit, [&] { return notes_sent_; });
  }
  muted_ = true;
  std::erase_if(active_, [&](const Active& active) { return active.message == &message; });
}

void MpiWorld::fail(const CommError& error) {
  const std::lock_guard lock(mutex_);
  set_failure(error);
}

void MpiWorld::set_failure(const CommError& error) {
  if (failure_) return;
  failure_ = error;
  failed_at_ = Clock::now();
  tell(error);
}

void MpiWorld::tell(const CommError& error) {
  if (muted_ || !note_sends_.empty()) return;
  outgoing_note_.guilty = error.guilty();
  copy_text(error.what(), outgoing_note_.text);
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    MPI_Isend(&outgoing_note_, sizeof(Note), MPI_BYTE, to, kNoteTag, control_,
              &note_sends_.emplace_back(MPI_REQUEST_NULL));
  }
}

void MpiWorld::throw_if_failed() const {
  if (failure_) throw *failure_;
  if (muted_) throw failure_of(rank_, "a message was given up: none can follow it");
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

void MpiWorld::poll_control() {
  int arrived = 0;
  MPI_Status status;
  while (MPI_Test(&pulse_request_, &arrived, &status) == MPI_SUCCESS && arrived != 0) {
    Peer& peer = peers_[static_cast<std::size_t>(status.MPI_SOURCE)];
    peer.heard = Clock::now();
    peer.left = incoming_pulse_.leaving != 0;
    peer.blocked = {incoming_pulse_.blocked_on, incoming_pulse_.label.data()};
    MPI_Irecv(&incoming_pulse_, sizeof(Pulse), MPI_BYTE, MPI_ANY_SOURCE, kPulseTag, control_,
              &pulse_request_);
  }
  while (MPI_Test(&note_request_, &arrived, &status) == MPI_SUCCESS && arrived != 0) {
    if (!failure_) {  // told to all by its sender, so not told on
      failure_ = CommError(incoming_note_.text.data(), incoming_note_.guilty);
      failed_at_ = Clock::now();
    }
    MPI_Irecv(&incoming_note_, sizeof(Note), MPI_BYTE, MPI_ANY_SOURCE, kNoteTag, control_,
              &note_request_);
  }
  if (!note_sends_.empty()) {
    int all_sent = 0;
    MPI_Testall(static_cast<int>(note_sends_.size()), note_sends_.data(), &all_sent,
                MPI_STATUSES_IGNORE);
    notes_sent_ = all_sent != 0;
  }
}

void MpiWorld::send_pulses(Clock::time_point now) {
  // If we were stopped ourselves, the others only seem silent: hear them again first.
  if (now - last_control_ > options_.silence / 2) {
    for (Peer& peer : peers_)
      peer.heard = now;
  }
  last_control_ = now;
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    Peer& peer = peers_[static_cast<std::size_t>(to)];
    int sent = 0;
    MPI_Test(&peer.sending, &sent, MPI_STATUS_IGNORE);
    if (sent == 0) continue;  // a stopped rank takes nothing: do not pile up
    peer.outgoing.leaving = leaving_ ? 1 : 0;
    peer.outgoing.blocked_on = blocked_.peer;
    copy_text(blocked_.label, peer.outgoing.label);
    MPI_Isend(&peer.outgoing, sizeof(Pulse), MPI_BYTE, to, kPulseTag, control_, &peer.sending);
  }
}

void MpiWorld::listen_for_silence(Clock::time_point now) {
  if (failure_) return;
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (r == rank_ || peer.left || now - peer.heard <= options_.silence) continue;
    const double seconds = std::chrono::duration<double>(now - peer.heard).count();
    const std::string reason =
        fmt::format("no sign of life for {:.2f} s: it was killed or stopped", seconds);
    set_failure(failure_of(r, reason));
    return;
  }
}

template <typename Condition>
bool MpiWorld::poll_until(std::unique_lock<std::mutex>& lock, milliseconds limit,
                          const Condition& condition) {
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

void MpiWorld::run_progress() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    poll();
    if (failure_ && !reported_ && Clock::now() - failed_at_ > kReportGrace) {
      reported_ = true;
      lock.unlock();
      const int code = report_(std::make_exception_ptr(*failure_));
      lock.lock();
      linger(lock);
      std::fflush(nullptr);
      std::_Exit(code == 0 ? 1 : code);
    }
    const auto interval = num_active_sends_ > 0 && !waiting_ ? kBusyInterval : kIdleInterval;
    lock.unlock();
    std::this_thread::sleep_for(interval);
    lock.lock();
  }
}

void MpiWorld::linger(std::unique_lock<std::mutex>& lock) {
  poll_until(lock, kLinger, [] { return false; });
}

void MpiWorld::stop_progress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (progress_.joinable()) progress_.join();
}

void MpiWorld::finish() {
  {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    next_control_ = next_pulse_ = Clock::now();
    const auto missing = [&] {
      for (int r = 0; r < size_; ++r) {
        if (r != rank_ && !peers_[static_cast<std::size_t>(r)].left) return r;
      }
      return -1;
    };
    poll_until(lock, options_.comm.deadline, [&] { return failure_ || missing() < 0; });
    if (!failure_ && missing() >= 0) {
      set_failure(
          deadline_error({false, rank_, missing(), 0, "end of the run"}, options_.comm.deadline,
                         [&](int r) { return peers_[static_cast<std::size_t>(r)].blocked; }));
    }
    throw_if_failed();
    // All have heard of all only once everyone is here: until then pulses must be taken.
    MPI_Request all_here = MPI_REQUEST_NULL;
    MPI_Ibarrier(messages_, &all_here);
    const bool ended = poll_until(lock, options_.comm.deadline, [&] {
      int done = 0;
      MPI_Test(&all_here, &done, MPI_STATUS_IGNORE);
      return failure_ || done != 0;
    });
    throw_if_failed();
    if (!ended) {
      set_failure(failure_of(rank_, "the other ranks did not come to the end of the run"));
      throw_if_failed();
    }
  }
  stop_progress();
  for (MPI_Request* request : {&pulse_request_, &note_request_}) {
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
  }
  for (Peer& peer : peers_)
    MPI_Wait(&peer.sending, MPI_STATUS_IGNORE);
  MPI_Comm_free(&messages_);
  MPI_Comm_free(&control_);
  MPI_Finalize();
}

int MpiWorld::end_badly(std::exception_ptr cause) {
  std::unique_lock lock(mutex_);
  if (reported_) {  // the progress thread was faster, and ends the process
    lock.unlock();
    while (true)
      std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  reported_ = true;
  lock.unlock();
  const int code = report_(std::move(cause));
  lock.lock();
  linger(lock);
  return code == 0 ? 1 : code;
}

}  // namespace sluice
