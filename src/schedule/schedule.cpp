#include "sluice/schedule/schedule.h"

#include <numeric>

namespace sluice {

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
    case OpKind::Update:
    case OpKind::Unshard:
    case OpKind::Reshard: break;  // ordered by their place in the program alone
  }
  return inputs;
}

}  // namespace sluice
