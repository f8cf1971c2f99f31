// DualPipe and DualPipe-V: two streams of microbatches meet on every device, and a forward of one
// runs as one with a backward of the other (a group). Eight phases; chunk 0 and 1 are the two
// stages a device works on. DualPipe-V folds one pipe into a V; DualPipe runs two pipes in opposite
// directions. DualPipe-V, p = 2, m = 4:
//
//   device 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1) (3F2;0B0) 3B2 (3F3;0B1) 3B3 0I2 0W2 0I3 0W3
#include <array>
#include <deque>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/generators/passes.h"

namespace sluice::generators {
namespace {

// The pass list of the device `r` of `p`, each chunk with m microbatches. W passes are written
// with the chunk whose oldest pending I they complete.
PassList dual_phases(int p, int r, int m) {
  PassList program;
  std::deque<int> pending;  // chunks of I whose W is still to come
  const auto forward = [&](int chunk) { program.push_back({OpKind::F, chunk}); };
  const auto backward = [&](int chunk) { program.push_back({OpKind::B, chunk}); };
  const auto input_gradient = [&](int chunk) {
    program.push_back({OpKind::I, chunk});
    pending.push_back(chunk);
  };
  const auto oldest_weight = [&] {
    program.push_back({OpKind::W, pending.front()});
    pending.pop_front();
  };
  const auto overlap = [&](int forward_chunk) {
    forward(forward_chunk);
    backward(1 - forward_chunk);
    program.back().joined = true;
  };

  for (int n = 0; n < 2 * (p - r - 1); ++n)
    forward(0);
  for (int n = 0; n < r + 1; ++n) {
    forward(0);
    forward(1);
  }
  for (int n = 0; n < p - r - 1; ++n) {
    input_gradient(1);
    oldest_weight();
    forward(1);
  }
  for (int n = 0; n < m - 2 * p + r + 1; ++n) {
    overlap(0);
    if (n == 0 && r == p - 1) program.back().joined = false;
    overlap(1);
  }
  for (int n = 0; n < p - r - 1; ++n) {
    backward(1);
    overlap(1);
  }
  // From half-way on only input gradients, so that the next device is not kept waiting.
  bool split = false;
  for (int n = 0; n < r + 1; ++n) {
    const bool half_way = n == (r + 1) / 2;
    if (half_way && r % 2 == 1) split = true;
    split ? input_gradient(1) : backward(1);
    if (half_way && r % 2 == 0) split = true;
    split ? input_gradient(0) : backward(0);
  }
  for (int n = 0; n < p - r - 1; ++n) {
    oldest_weight();
    input_gradient(0);
  }
  while (!pending.empty())
    oldest_weight();
  return program;
}

// n-th backward of a chunk is microbatch n, be it B or I; W takes the microbatch of its I.
class Numbering {
 public:
  int next(const Pass& pass) {
    const auto chunk = static_cast<std::size_t>(pass.chunk);
    if (pass.kind == OpKind::F) return forwards_[chunk]++;
    if (pass.kind == OpKind::W) {
      const int mb = pending_[chunk].front();
      pending_[chunk].pop_front();
      return mb;
    }
    if (pass.kind == OpKind::I) pending_[chunk].push_back(backwards_[chunk]);
    return backwards_[chunk]++;
  }

 private:
  std::array<int, 2> forwards_{}, backwards_{};
  std::array<std::deque<int>, 2> pending_;
};

Schedule generate_v(const GeneratorOptions& o) {
  const int p = o.devices, m = o.microbatches;
  if (m < 2 * p)
    throw user_error(
        "`microbatches` is {}: dualpipe-v needs at least 2p = {} on {} devices; zb-v takes any "
        "number",
        m, 2 * p, p);
  Schedule schedule;
  schedule.name = "dualpipe-v";
  schedule.placement = Placement::vee(p, 2);
  schedule.num_microbatches = m;
  for (int r = 0; r < p; ++r) {
    Numbering number;
    Program& program = schedule.programs.emplace_back();
    for (const Pass& pass : dual_phases(p, r, m))
      program.push_back(make_op(pass.kind, pass.chunk == 0 ? r : 2 * p - 1 - r, number.next(pass),
                                0, 0, pass.joined));
  }
  return schedule;
}

Schedule generate_two_pipes(const GeneratorOptions& o) {
  const int d = o.devices, m = o.microbatches;
  if (d % 2 != 0)
    throw user_error("`devices` is {}: dualpipe needs an even number; dualpipe-v takes any", d);
  if (m % 2 != 0 || m < 2 * d)
    throw user_error(
        "`microbatches` is {}: dualpipe needs an even number of at least 2p = {} on {} devices", m,
        2 * d, d);
  Schedule schedule;
  schedule.name = "dualpipe";
  schedule.placement = Placement::mirrored(d);
  schedule.num_microbatches = m;
  for (int device = 0; device < d; ++device) {
    // On the second half of the devices the pipes swap roles.
    const bool second_half = device >= d / 2;
    const int r = second_half ? d - 1 - device : device;
    Numbering number;
    Program& program = schedule.programs.emplace_back();
    for (const Pass& pass : dual_phases(d / 2, r, m / 2)) {
      const int pipe = second_half ? 1 - pass.chunk : pass.chunk;
      program.push_back(make_op(pass.kind, pass.chunk == 0 ? r : d - 1 - r,
                                2 * number.next(pass) + pipe, 0, pipe, pass.joined));
    }
  }
  return schedule;
}

}  // namespace

extern const Generator dualpipe_v;
const Generator dualpipe_v = {"dualpipe-v",
                              {"DualPipeV"},
                              "DualPipe folded into a V, in PyTorch's order, F and B overlapped",
                              "(p-1)(F&B + B - 3W), times of one stage",
                              "2p+1",
                              {.default_stages_per_device = 2},
                              generate_v};

extern const Generator dualpipe;
const Generator dualpipe = {"dualpipe",
                            {},
                            "two pipes in opposite directions, two copies of the weights",
                            "(p/2-1)(F&B + B - 3W)",
                            "p+1",
                            {.default_stages_per_device = 2, .pipes = 2},
                            generate_two_pipes};

}  // namespace sluice::generators
