#include "sluice/schedule/schedule.h"

#include <numeric>

#include "sluice/base/error.h"

namespace sluice {

Schedule without_ops(const Schedule& schedule) {
  Schedule out;
  out.name = schedule.name;
  out.placement = schedule.placement;
  out.num_microbatches = schedule.num_microbatches;
  out.num_windows = schedule.num_windows;
  out.weights = schedule.weights;
  out.updates_by_stage = schedule.updates_by_stage;
  out.num_slices = schedule.num_slices;
  out.slice_sizes = schedule.slice_sizes;
  out.programs.resize(schedule.programs.size());
  return out;
}

double Schedule::slice_share(int slice) const {
  if (slice_sizes.empty()) return 1.0 / num_slices;
  const auto total = std::accumulate(slice_sizes.begin(), slice_sizes.end(), std::int64_t{0});
  return static_cast<double>(slice_sizes[static_cast<std::size_t>(slice)]) /
         static_cast<double>(total);
}

std::string Schedule::program_text(int device) const {
  const Program& program = programs[static_cast<std::size_t>(device)];
  std::string out;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const bool opens = i + 1 < program.size() && program[i + 1].joined && !program[i].joined;
    const bool closes = program[i].joined && (i + 1 == program.size() || !program[i + 1].joined);
    if (i > 0) out += program[i].joined ? ';' : ',';
    if (opens) out += '(';
    out += text(program[i]);
    if (closes) out += ")OVERLAP_F_B";
  }
  return out;
}

std::size_t Schedule::num_compute_ops() const {
  std::size_t count = 0;
  for (const Program& program : programs)
    for (const Op& op : program)
      count += is_compute(op.kind);
  return count;
}

bool Schedule::has(OpKind kind) const {
  for (const Program& program : programs)
    for (const Op& op : program)
      if (op.kind == kind) return true;
  return false;
}

bool Schedule::has_communication() const {
  for (const Program& program : programs)
    for (const Op& op : program)
      if (is_communication(op.kind)) return true;
  return false;
}

namespace {

// The gradients that a REDUCE_GRAD sums on its device, one of each (microbatch, slice).
void add_gradients(const Op& op, const Schedule& schedule, Inputs& inputs) {
  const int device = schedule.device_of(op);
  const int first = schedule.window_of(op) * schedule.window_size();
  for (int m = first; m < first + schedule.window_size(); ++m) {
    const int pipe = schedule.pipe_of(m);
    if (schedule.placement.device_of(pipe, op.stage) != device) continue;
    for (int slice = 0; slice < schedule.num_slices; ++slice)
      inputs.add(make_op(OpKind::W, op.stage, m, slice, pipe));
  }
}

void add_before_update(const Op& op, const Schedule& schedule, Inputs& inputs) {
  const int device = schedule.device_of(op), window = schedule.window_of(op);
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (schedule.updates_by_stage && stage != op.stage) continue;
    for (const int holder : schedule.placement.holders_of(stage))
      inputs.add(schedule.window_op(OpKind::ReduceGrad, holder, stage, window));
  }
  if (window > 0) inputs.add(schedule.window_op(OpKind::Update, device, op.stage, window - 1));
  if (const int owner = schedule.owner_of(op.stage); owner != device)
    inputs.add(schedule.window_op(OpKind::Update, owner, op.stage, window));
}

}  // namespace

Inputs inputs_of(const Op& op, const Schedule& schedule) {
  Inputs inputs;
  if (!has_window(op.kind)) {
    inputs = inputs_of(op, schedule.num_stages(), schedule.num_slices);
    // Weights that do not exist yet: of the first two windows they are those of the start.
    const int window = schedule.window_of(op);
    if (op.kind == OpKind::F && schedule.weights == WeightVersions::previous && window >= 2)
      inputs.add(schedule.window_op(OpKind::Update, schedule.device_of(op), op.stage, window - 2));
    return inputs;
  }
  if (op.kind == OpKind::ReduceGrad)
    add_gradients(op, schedule, inputs);
  else
    add_before_update(op, schedule, inputs);
  return inputs;
}

Inputs inputs_of(const Op& op, int num_stages, int num_slices) {
  Inputs inputs;
  const auto need = [&](OpKind kind, int stage, int slice) {
    Op input = op;
    input.kind = kind;
    input.joined = 0;
    input.stage = stage;
    input.slice = static_cast<std::uint16_t>(slice);
    inputs.add(input);
  };
  const int s = op.stage;
  const int c = op.slice;
  switch (op.kind) {
    case OpKind::F:
      if (s > 0) need(OpKind::F, s - 1, c);
      if (c > 0) need(OpKind::F, s, c - 1);  // keys and values of the tokens before
      break;
    case OpKind::I:
    case OpKind::B:
      need(OpKind::F, s, c);
      if (s < num_stages - 1) need(OpKind::I, s + 1, c);
      if (c < num_slices - 1) need(OpKind::I, s, c + 1);  // their gradients come from later slices
      break;
    case OpKind::W: need(OpKind::I, s, c); break;
    case OpKind::SendF: need(OpKind::F, s, c); break;
    case OpKind::SendB: need(OpKind::I, s, c); break;
    case OpKind::RecvF: need(OpKind::SendF, s - 1, c); break;
    case OpKind::RecvB: need(OpKind::SendB, s + 1, c); break;
    case OpKind::ReduceGrad:
    case OpKind::Update: SLUICE_CHECK(false, "{} has a window", op_text(op, false, false)); break;
    case OpKind::Unshard:
    case OpKind::Reshard: break;  // ordered by their place in the program alone
  }
  return inputs;
}

}  // namespace sluice
