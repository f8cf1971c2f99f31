#include "sluice/cost/costs.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {

double Costs::duration(const Op& op) const {
  switch (op.kind) {
    case OpKind::F: return of(op).f;
    case OpKind::I: return of(op).i;
    case OpKind::W: return of(op).w;
    case OpKind::B: return of(op).b;
    case OpKind::SendF:
    case OpKind::RecvF:
    case OpKind::SendB:
    case OpKind::RecvB:
    case OpKind::ReduceGrad:
    case OpKind::Unshard:
    case OpKind::Reshard: return 0;  // beside the compute, not in its way
    case OpKind::Update: return update_time(op.stage);
  }
  return 0;
}

Costs unit_costs(const Schedule& schedule, const OpTimes& times, double comm, double keep_after_i,
                 const SliceShares& shares) {
  Costs costs(schedule.num_stages(), schedule.num_slices);
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const double tokens = schedule.slice_share(slice);
      const auto share = [&](const std::vector<double>& of) {
        return of.empty() ? tokens : of[static_cast<std::size_t>(slice)];
      };
      OpCosts& op = costs.at(stage, slice);
      op.f = times.f * share(shares.f);
      op.i = times.i * share(shares.i);
      op.w = times.w * share(shares.w);
      op.b = op.i + op.w;
      op.after_f = tokens;
      op.after_i = tokens * keep_after_i;
    }
  costs.default_link.latency = comm;
  return costs;
}

void check_split(const Costs& costs, std::string_view who) {
  if (costs.unsplit_stage >= 0)
    throw user_error("costs: stages[{}] has B alone, but {} runs I and W separately: give I and W",
                     costs.unsplit_stage, who);
}

SearchTimes search_times(const Costs& costs) {
  check_split(costs, "the search");
  SearchTimes times;
  double most_bytes = 0;
  for (int stage = 0; stage < costs.num_stages(); ++stage) {
    OpTimes sum = {0, 0, 0};
    double forward = 0, backward = 0;
    for (int slice = 0; slice < costs.num_slices(); ++slice) {
      const OpCosts& op = costs.at(stage, slice);
      sum = {sum.f + op.f, sum.i + op.i, sum.w + op.w};
      forward += op.sent_forward;
      backward += op.sent_backward;
    }
    times.stages.push_back(sum);
    most_bytes = std::max({most_bytes, forward, backward});
  }
  times.comm = costs.default_link.latency;
  if (costs.default_link.bytes_per_time > 0)
    times.comm += most_bytes / costs.default_link.bytes_per_time;
  return times;
}

void check_contention(const std::vector<double>& contention, int devices, std::string_view name) {
  if (contention.size() != static_cast<std::size_t>(devices))
    throw user_error(
        "{} has {} numbers, but there are {} devices: give the speed with 1, 2, ... {} of them "
        "busy, or leave it out",
        name, contention.size(), devices, devices);
  for (std::size_t n = 0; n < contention.size(); ++n)
    if (!(contention[n] >= 1e-3 && contention[n] <= 1e3))
      throw user_error(
          "{}[{}] is {}: needs a speed from 0.001 to 1000, relative to that with all "
          "devices busy",
          name, n, number(contention[n]));
  if (contention.back() != 1)
    throw user_error("{} ends with {}: all devices busy is speed 1; divide all numbers by {}", name,
                     number(contention.back()), number(contention.back()));
}

std::string measured_on_note(const std::string& file, const Costs& costs) {
  return costs.measured_on
             ? fmt::format("{}: measured on {}", file, costs.measured_on->text())
             : fmt::format("{}: has no measured_on, so it may be of another model", file);
}

}  // namespace sluice
