// The part of MpiWorld that keeps ranks together: signs of life, failures, and the end of the run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sluice/base/error.h"
#include "sluice/comm/mpi/world.h"

namespace sluice {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A pending send may need us for every fragment; with receives alone a slower beat will do.
constexpr microseconds kBusyInterval{100};
constexpr microseconds kIdleInterval{1000};
// How long the rank's own thread gets to report a failure before the progress thread does.
constexpr milliseconds kReportGrace{150};
// How long a rank that tells of a failure listens whether others do.
constexpr milliseconds kMeeting{100};
// How long a failed rank stays, so that all others hear of the failure and report it.
constexpr milliseconds kLinger{300};

template <std::size_t N>
void copy_text(const std::string& from, std::array<char, N>& to) {
  to.fill('\0');
  std::copy_n(from.begin(), std::min(from.size(), N - 1), to.begin());
}

}  // namespace

void MpiWorld::fail(const CommError& error) {
  const std::lock_guard lock(mutex_);
  set_failure(error);
}

void MpiWorld::check() {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
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
  outgoing_note_.code = static_cast<std::int32_t>(error.code());
  copy_text(error.what(), outgoing_note_.text);
  note_sends_.assign(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    MPI_Isend(&outgoing_note_, sizeof(Note), MPI_BYTE, to, kNoteTag, control_,
              &note_sends_[static_cast<std::size_t>(to)]);
  }
}

void MpiWorld::throw_if_failed() const {
  if (failure_) throw *failure_;
  if (muted_) throw failure_of(rank_, "a message was dropped, and no other can follow it");
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
    if (status.MPI_SOURCE < rank_) outspoken_ = true;
    if (!failure_) {  // told to all by its sender, so not told on
      failure_ = CommError(incoming_note_.text.data(), incoming_note_.guilty,
                           static_cast<ExitCode>(incoming_note_.code));
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
    stopped_until_ = now;
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
    if (stopped_until_ && peer.heard - *stopped_until_ < options_.silence / 2)
      return set_failure(failure_of(rank_, "it was stopped, and the others went on without it"));
    const double seconds = std::chrono::duration<double>(now - peer.heard).count();
    const std::string reason =
        fmt::format("no sign of life for {:.2f} s: it was killed or stopped", seconds);
    return set_failure(failure_of(r, reason));
  }
}

void MpiWorld::run_progress() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    poll();
    if (failure_ && !reported_ && Clock::now() - failed_at_ > kReportGrace) {
      reported_ = true;
      const bool speaker = speaks();
      lock.unlock();
      const int code = report_(std::make_exception_ptr(*failure_), speaker);
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
    // A rank that still waits for a message at its deadline knows more: it reports first.
    const milliseconds limit = options_.comm.deadline + options_.silence;
    poll_until(lock, limit, [&] { return failure_ || missing() < 0; });
    if (!failure_ && missing() >= 0) {
      set_failure(deadline_error({false, rank_, missing(), 0, "end of the run"}, limit, [&](int r) {
        return peers_[static_cast<std::size_t>(r)].blocked;
      }));
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
      set_failure(failure_of(rank_, "the other ranks did not reach the end of the run"));
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

int MpiWorld::end_badly(const std::exception_ptr& cause) {
  std::unique_lock lock(mutex_);
  if (reported_) {  // the progress thread was faster, and ends the process
    lock.unlock();
    while (true)
      std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  reported_ = true;
  poll_until(lock, kMeeting, [&] { return !speaks(); });
  const bool speaker = speaks();
  lock.unlock();
  const int code = report_(cause, speaker);
  lock.lock();
  linger(lock);
  return code == 0 ? 1 : code;
}

}  // namespace sluice
