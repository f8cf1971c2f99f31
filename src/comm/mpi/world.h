// The MPI side of one process: every message under way, the thread that moves them, the heartbeat
// and the failure of the run. One mutex guards all of it and every call into MPI, so that whoever
// holds it, the rank's own thread in a wait or the progress thread, may poll for all.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/comm/mpi/options.h"

namespace sluice {

// A posted send or receive; the owner keeps it in place until it is done or withdrawn.
struct MpiMessage {
  MessageName name;
  int channel = 0;              // a group's lane: messages of one peer and channel arrive in order
  int tag = 0;                  // distinct among successive messages of a channel
  std::span<std::byte> target;  // of a receive
  bool done = false;
  std::optional<CommError> error;
};

class MpiWorld {
 public:
  // Starts MPI, meets the other ranks and starts the progress thread. Blocks.
  MpiWorld(const MpiOptions& options, MpiReport report);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int num_tags() const { return num_tags_; }

  void post_send(MpiMessage& message, std::span<const std::byte> bytes);
  void post_recv(MpiMessage& message);
  void wait(MpiMessage& message);  // throws at the deadline, at a failure, for a wrong size
  bool test(MpiMessage& message);
  // Afterwards MPI no longer touches the bytes. If it cannot be made to release them, this process
  // makes no further MPI calls.
  void withdraw(MpiMessage& message);

  // Makes this the failure of the whole run, unless there is one already, and tells all ranks.
  void fail(const CommError& error);
  void check();  // throws the failure, if there is one

  // The normal end: waits until every rank has reached it, and finalizes MPI.
  void finish();
  // The end after a failure: reports `cause`, lets the others do the same, and returns the exit
  // code.
  int end_badly(const std::exception_ptr& cause);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kPulseTag = 1;
  static constexpr int kNoteTag = 2;
  struct Active {
    MPI_Request request;
    MpiMessage* message;
  };
  // The sign of life. Small enough to be sent eagerly under any setting.
  struct Pulse {
    std::int32_t leaving = 0;
    std::int32_t blocked_on = -1;
    std::array<char, 16> label{};
  };
  struct Peer {
    Clock::time_point heard;
    bool left = false;
    Blocked blocked;
    Pulse outgoing;
    MPI_Request sending = MPI_REQUEST_NULL;
  };
  struct Note {  // tells a rank of a failure
    std::int32_t guilty = 0;
    std::int32_t code = 0;
    std::array<char, 1000> text{};
  };

  void poll();  // these need the mutex
  void match_receives();
  void match(MpiMessage& receive, MPI_Message arrived, const MPI_Status& status);
  void poll_messages();
  void poll_control();
  CommError mpi_error(const MpiMessage& message, int error) const;
  void send_pulses(Clock::time_point now);
  void listen_for_silence(Clock::time_point now);
  void set_failure(const CommError& error);
  void tell(const CommError& error);  // all ranks, once
  void throw_if_failed() const;
  bool speaks() const { return !note_sends_.empty() && !outspoken_; }
  bool poll_until(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit,
                  const std::function<bool()>& condition);

  void run_progress();  // the thread
  void linger(std::unique_lock<std::mutex>& lock);
  void stop_progress();

  const MpiOptions options_;
  const MpiReport report_;
  int rank_ = 0;
  int size_ = 0;
  int num_tags_ = 0;
  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;

  std::mutex mutex_;
  // Receives are not posted to MPI but matched by probing, so that the size is checked first:
  // OpenMPI 4.1 writes past the end of a receive if a larger message arrives by rendezvous.
  std::map<std::pair<int, int>, std::deque<MpiMessage*>> unmatched_;  // by peer and channel
  std::vector<Active> active_;
  int num_active_sends_ = 0;
  std::vector<MPI_Request> requests_;  // of one poll
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  bool waiting_ = false;  // the rank's own thread polls
  bool muted_ = false;    // no more MPI calls
  bool leaving_ = false;
  bool stop_ = false;
  Blocked blocked_;

  std::vector<Peer> peers_;
  Clock::time_point next_control_;
  Clock::time_point next_pulse_;
  Clock::time_point last_control_;
  std::optional<Clock::time_point> stopped_until_;  // when this process ran again after a stop
  Pulse incoming_pulse_;
  MPI_Request pulse_request_ = MPI_REQUEST_NULL;
  Note incoming_note_;
  MPI_Request note_request_ = MPI_REQUEST_NULL;

  std::optional<CommError> failure_;
  Clock::time_point failed_at_;
  bool reported_ = false;
  Note outgoing_note_;
  std::vector<MPI_Request> note_sends_;
  bool notes_sent_ = false;
  bool outspoken_ = false;  // a lower rank told of a failure, so this one does not speak

  std::thread progress_;
};

}  // namespace sluice
