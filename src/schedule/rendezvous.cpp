#include "sluice/schedule/rendezvous.h"

#include <algorithm>
#include <array>

#include "sluice/base/error.h"
#include "sluice/schedule/deadlock.h"
#include "sluice/schedule/seen.h"

namespace sluice {

std::size_t Rendezvous::channel_of(int from, int to) {
  const auto [at, added] = index_.try_emplace({from, to}, channels_.size());
  if (added) channels_.push_back({from, to, {}, {}});
  return at->second;
}

Rendezvous::Rendezvous(const Schedule& lowered) : schedule_(lowered) {
  const Schedule& s = schedule_;
  const int num_pipes = s.num_pipes(), num_stages = s.num_stages();
  // Channel of a (pipe, stage)'s four kinds of transfer, found once.
  std::vector<std::array<std::size_t, 4>> channel(
      static_cast<std::size_t>(num_pipes) * static_cast<std::size_t>(num_stages),
      {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX});
  for (std::size_t d = 0; d < s.programs.size(); ++d) {
    for (std::size_t i = 0; i < s.programs[d].size(); ++i) {
      const Op& op = s.programs[d][i];
      if (!is_communication(op.kind)) continue;
      const int partner = partner_stage(op);
      if (partner < 0 || partner >= num_stages) continue;
      const int other = s.placement.device_of(op.pipe, partner);
      if (other == static_cast<int>(d)) continue;
      std::size_t& id =
          channel[static_cast<std::size_t>(op.pipe) * static_cast<std::size_t>(num_stages) +
                  static_cast<std::size_t>(op.stage)]
                 [static_cast<std::size_t>(op.kind) - static_cast<std::size_t>(OpKind::SendF)];
      const bool send = is_send(op.kind);
      const int self = static_cast<int>(d);
      if (id == SIZE_MAX) id = send ? channel_of(self, other) : channel_of(other, self);
      auto& list = send ? channels_[id].sends : channels_[id].recvs;
      list.push_back(static_cast<std::uint32_t>(i));
    }
  }
}

bool Rendezvous::check_order(std::vector<Problem>& problems) const {
  const Schedule& s = schedule_;
  const auto report = [&](std::size_t device, std::size_t position, const Op& op,
                          std::string text) {
    problems.push_back(
        {static_cast<int>(device), static_cast<int>(position), s.text(op), std::move(text)});
  };
  bool all_matched = true;
  for (const Channel& channel : channels_) {
    bool matched = true;
    const auto from = static_cast<std::size_t>(channel.from);
    const auto to = static_cast<std::size_t>(channel.to);
    const std::size_t common = std::min(channel.sends.size(), channel.recvs.size());
    for (std::size_t n = 0; n < common; ++n) {
      const Op& send = s.programs[from][channel.sends[n]];
      const Op& recv = s.programs[to][channel.recvs[n]];
      if (partner_stage(send) == recv.stage && partner_stage(recv) == send.stage &&
          send.microbatch == recv.microbatch && send.slice == recv.slice)
        continue;
      report(to, channel.recvs[n], recv,
             fmt::format("receive {} from device {} meets {} (position {} there): order differs", n,
                         from, s.text(send), channel.sends[n]));
      matched = false;
      break;  // everything after the first mismatch is shifted
    }
    if (channel.sends.size() > common && matched)
      report(from, channel.sends[common], s.programs[from][channel.sends[common]],
             fmt::format("device {} has no receive for it", to));
    if (channel.recvs.size() > common && matched)
      report(to, channel.recvs[common], s.programs[to][channel.recvs[common]],
             fmt::format("device {} has no send for it", from));
    all_matched = all_matched && matched && channel.sends.size() == channel.recvs.size();
  }
  return all_matched;
}

void Rendezvous::check_progress(std::vector<Problem>& problems) const {
  const Schedule& s = schedule_;
  const std::size_t n = s.programs.size();
  std::vector<std::uint32_t> at(n, 0);
  std::vector<std::vector<std::size_t>> channel_of_send(n), channel_of_recv(n);
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    channel_of_send[static_cast<std::size_t>(channels_[c].from)].push_back(c);
    channel_of_recv[static_cast<std::size_t>(channels_[c].to)].push_back(c);
  }
  std::vector<std::size_t> sent(channels_.size(), 0), posted(channels_.size(), 0);
  SeenOps done(s);
  const bool updates = s.has(OpKind::Update);

  // The device that the next op of d waits for, or -1 when it may go.
  const auto waits_for = [&](std::size_t d) {
    const Op& op = s.programs[d][at[d]];
    if (is_send(op.kind)) {
      for (const std::size_t c : channel_of_send[d])
        if (sent[c] < channels_[c].sends.size() && channels_[c].sends[sent[c]] == at[d])
          return posted[c] > sent[c] ? -1 : channels_[c].to;
      return -1;
    }
    if (!is_compute(op.kind) && !has_window(op.kind)) return -1;
    for (const Op& input : inputs_of(op, s)) {
      const int producer = s.device_of(input);
      if (producer == static_cast<int>(d)) continue;
      Op bringer = input;
      if (!has_window(input.kind))
        bringer.kind = input.kind == OpKind::F ? OpKind::SendF : OpKind::SendB;
      if (!done.has(bringer)) return producer;
    }
    return -1;
  };

  std::vector<std::size_t> runnable(n);
  std::vector<char> queued(n, 1);
  for (std::size_t d = 0; d < n; ++d)
    runnable[d] = n - 1 - d;
  const auto wake = [&](int device) {
    const auto d = static_cast<std::size_t>(device);
    if (queued[d]) return;
    queued[d] = 1;
    runnable.push_back(d);
  };
  while (!runnable.empty()) {
    const std::size_t d = runnable.back();
    runnable.pop_back();
    queued[d] = 0;
    while (at[d] < s.programs[d].size() && waits_for(d) < 0) {
      const Op& op = s.programs[d][at[d]];
      if (is_send(op.kind)) {
        done.add(op);
        for (const std::size_t c : channel_of_send[d])
          if (sent[c] < channels_[c].sends.size() && channels_[c].sends[sent[c]] == at[d]) {
            ++sent[c];
            wake(channels_[c].to);
            break;
          }
      } else if (is_recv(op.kind)) {
        for (const std::size_t c : channel_of_recv[d])
          if (posted[c] < channels_[c].recvs.size() && channels_[c].recvs[posted[c]] == at[d]) {
            ++posted[c];
            wake(channels_[c].from);
            break;
          }
      }
      if (has_window(op.kind) && updates) {
        done.add(op);
        for (std::size_t other = 0; other < n; ++other)
          if (at[other] < s.programs[other].size() &&
              s.programs[other][at[other]].kind == OpKind::Update)
            wake(static_cast<int>(other));
      }
      ++at[d];
    }
  }

  std::vector<Waiting> waiting(n);
  bool stuck = false;
  for (std::size_t d = 0; d < n; ++d) {
    if (at[d] == s.programs[d].size()) continue;
    stuck = true;
    const Op& op = s.programs[d][at[d]];
    const int on = waits_for(d);
    waiting[d] = {on, at[d], s.text(op),
                  fmt::format("device {} at position {} ({}) waits for device {} to {}", d, at[d],
                              s.text(op), on,
                              is_send(op.kind)      ? "post its receive"
                              : is_compute(op.kind) ? "send its input"
                                                    : "reduce or update before it")};
  }
  if (stuck) report_deadlocks(waiting, problems);
}

}  // namespace sluice
