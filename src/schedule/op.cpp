#include "sluice/schedule/op.h"

#include <fmt/format.h>

namespace sluice {

std::string_view kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::F: return "F";
    case OpKind::I: return "I";
    case OpKind::W: return "W";
    case OpKind::B: return "B";
    case OpKind::SendF: return "SEND_F";
    case OpKind::RecvF: return "RECV_F";
    case OpKind::SendB: return "SEND_B";
    case OpKind::RecvB: return "RECV_B";
    case OpKind::ReduceGrad: return "REDUCE_GRAD";
    case OpKind::Update: return "UPDATE";
    case OpKind::Unshard: return "UNSHARD";
    case OpKind::Reshard: return "RESHARD";
  }
  return "?";
}

std::string op_text(const Op& op, bool with_slice, bool with_pipe) {
  std::string text = fmt::format("{}{}", op.stage, kind_name(op.kind));
  if (has_microbatch(op.kind)) {
    text += fmt::format("{}", op.microbatch);
    if (with_slice || op.slice != 0) text += fmt::format(".{}", op.slice);
  } else if (has_window(op.kind) && op.microbatch >= 0) {
    text += fmt::format("{}", op.microbatch);
  }
  if (with_pipe || op.pipe != 0) text += fmt::format("@{}", static_cast<int>(op.pipe));
  return text;
}

}  // namespace sluice
