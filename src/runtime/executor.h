// The executor: one loop over one rank's lowered program. It knows no schedule by name and runs
// exactly what was proved: a receive is posted and a send starts where it stands in the program,
// sends finish on their own, and a stash is freed by the last op that needs it.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/comm/tensors/group.h"
#include "sluice/cuda/device.h"
#include "sluice/model/stage.h"
#include "sluice/runtime/tensor_channel.h"
#include "sluice/schedule/schedule.h"
#include "sluice/trace/timeline.h"

namespace sluice {

// What one run of the program gave.
struct ExecutedStep {
  DeviceTimeline timeline;             // seconds since `origin`; memory in stash bytes
  std::int64_t peak_stash_bytes = 0;   // the ledger, read at op ends
  std::int64_t peak_buffer_bytes = 0;  // tensors between stages: arriving, kept, leaving
  double all_to_all_s = 0;  // of which between ranks that share sequences, as this rank saw it
  // Seconds since `origin` when this thread had issued the last op. On a GPU this should be long
  // before the op ends; otherwise the GPU waits for the thread.
  double issued = 0;
};

// How tensors travel between stages that several tensor ranks share. Each rank sends to its peer of
// the next stage: all tokens, or only its share of them. It sends a share because it has no more
// (`divided`), or because the receivers gather the shares (`scatter`).
struct Boundary {
  TensorGroup* tensor = nullptr;
  bool divided = false;
  bool scatter = false;
  Traffic* traffic = nullptr;
};

class Executor {
 public:
  // The data of a microbatch, the same on every rank that asks.
  using DataSource = std::function<const Microbatch&(int microbatch)>;

  // `stages` are this rank's, by stage number. REQUIRES: `lowered` was proved by validate(); rank
  // r of `pipeline` is device r; all outlive the executor.
  // `evaluate` runs forwards without keeping anything for a backward.
  Executor(const Schedule& lowered, std::map<int, Stage*> stages, TensorChannel& pipeline,
           const Boundary& boundary = {}, bool evaluate = false);

  // Runs the program once: every forward and backward of one step, or of a forward-only schedule
  // every forward. Throws UserError, CommError or InternalError: on the first line the cause and
  // the op, then the grid around it. Times count from `origin`.
  ExecutedStep run(const DataSource& data, std::int64_t dim, const TensorKind& kind,
                   std::chrono::steady_clock::time_point origin);

  // The same in parts. start() makes ready, run_to() runs the ops before `limit` that were not yet
  // run, finish() the rest. drop() forgets all since start(): REQUIRES that all ranks do, at limits
  // between which no message is under way.
  void start(const DataSource& data, std::int64_t dim, const TensorKind& kind,
             std::chrono::steady_clock::time_point origin);
  void run_to(std::size_t limit);
  ExecutedStep finish();
  void drop();

  // Called at a stage's REDUCE_GRAD, and after each op that computes; neither may block for ranks
  // of the pipeline. `before` and `after` are called around ops that compute, and before
  // REDUCE_GRAD.
  struct Hooks {
    std::function<void(int stage)> reduce;
    std::function<void()> poll;
    std::function<void(const Op&)> before = {}, after = {};
  };
  void set_hooks(Hooks hooks) { hooks_ = std::move(hooks); }

  // Of a run whose steps overlap: the part of the rank's program to run from the next start() on.
  // What it leaves under way, a later part takes up: finish_part() instead of finish().
  void set_program(Program program) { program_ = std::move(program); }
  ExecutedStep finish_part();
  // Takes in what the parts run so far have sent to this rank: these receives of the parts that
  // follow. Every rank calls it; then no message is under way.
  void take_in(const Program& receives);

 private:
  // A tensor on its way between stages: which way, and of whom.
  struct Key {
    bool gradient;
    int stage, microbatch, slice;  // of the op that will use it
    auto operator<=>(const Key&) const = default;
  };
  struct Arriving {
    TensorMessage message;
    std::int64_t tokens = 0;  // of which the tensor may be a share
  };

  ExecutedStep conclude(bool drains);
  double now() const;
  // Where a GPU computes, its own clock counts: marks are left in its stream, and read at the end.
  void mark();
  void settle_times();
  const Program& program() const { return program_; }
  void run_op(const Op& op);
  at::Tensor take_input(const Op& op, bool gradient);
  void hand_over(const Op& op, bool gradient, at::Tensor tensor);
  void post_receive(const Op& op);
  void send(const Op& op);
  void reap_sends();
  void count_buffers();
  std::string located(std::string_view cause, std::size_t position) const;
  std::int64_t stash_bytes() const;
  int num_tensor_ranks() const { return boundary_.tensor ? boundary_.tensor->size() : 1; }
  bool scatters() const {
    return boundary_.scatter && !boundary_.divided && num_tensor_ranks() > 1;
  }

  const Schedule& schedule_;
  Program program_;
  std::map<int, Stage*> stages_;
  TensorChannel& pipeline_;
  const Boundary boundary_;
  const bool evaluate_;
  std::int64_t dim_ = 0;
  TensorKind kind_;
  std::map<Key, at::Tensor> here_;     // made on this device, for an op of this device
  std::map<Key, at::Tensor> leaving_;  // made here, to be sent
  std::map<Key, Arriving> arriving_;
  std::set<Key> taken_in_;           // received before their op
  std::vector<TensorMessage> sent_;  // kept until they have moved
  std::int64_t peak_buffer_bytes_ = 0;
  DataSource data_;
  std::chrono::steady_clock::time_point origin_;
  std::size_t next_ = 0;  // op of the program
  ExecutedStep step_;
  Hooks hooks_;
  double started_ = 0;               // when the first mark was left
  std::vector<cuda::Moment> marks_;  // that, and of every op start and end; kept for reuse
  std::size_t num_marks_ = 0;
};

}  // namespace sluice
