#include "sluice/report/pricing.h"

#include <fmt/ranges.h>

#include <numeric>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/base/text.h"
#include "sluice/cost/known_models.h"
#include "sluice/cost/profiled_slices.h"
#include "sluice/plan/redeal.h"

namespace sluice {
namespace {

std::int64_t tokens_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// F, I and W of the slices that the costs file was measured with, and the tokens of all of them.
std::pair<WorkTerms, std::int64_t> profiled_work(const std::string& file) {
  return parse_file(file, kMaxCostsBytes, [](const std::string& text) {
    const Costs profile = stage_costs_from_json(text);
    if (profile.slice_sizes.size() < 2)
      throw user_error(
          "costs: balanced slices need the times of at least two slices and their slice_sizes: "
          "profile a schedule with slices, or give `model` instead");
    return std::pair(fitted_terms(profile, profile.slice_sizes), tokens_of(profile.slice_sizes));
  });
}

}  // namespace

void Pricing::count_model(std::int64_t tokens) {
  sequence_length = tokens;
  if (!times_given) times = default_times();
}

OpTimes Pricing::default_times() const {
  if (!model) return {};
  const OpTerms work = model_terms(model->shape, RecomputeLevel::none);
  const double forward = work.f.of_a_token(sequence_length);
  return {1, work.i.of_a_token(sequence_length) / forward,
          work.w.of_a_token(sequence_length) / forward};
}

SliceShares Pricing::shares(const Schedule& schedule) const {
  if (!model) return {};
  if (schedule.num_slices > 1) check_slices(model->shape);
  return slice_shares(model_terms(model->shape, RecomputeLevel::none),
                      slice_sizes_of(schedule, sequence_length));
}

void check_measured_length(const Costs& costs, std::int64_t tokens) {
  if (!costs.measured_on || tokens == 0) return;
  if (const std::int64_t length = costs.measured_on->sequence_length; length != tokens)
    throw user_error(
        "measured with sequences of {} tokens (measured_on.sequence_length), and the schedule's "
        "have {}: measure again (sluice profile) or correct `tokens`",
        length, tokens);
}

Costs with_slices_of(const Schedule& schedule, Costs profile) {
  const std::vector<std::int64_t>& sizes = schedule.slice_sizes;
  if (sizes.empty() || profile.slice_sizes.empty() || sizes == profile.slice_sizes) return profile;
  if (const auto measured = tokens_of(profile.slice_sizes); measured != tokens_of(sizes))
    throw user_error(
        "costs: slice_sizes sums to {}, and the schedule's slices hold {} tokens: measure again "
        "(sluice profile) or correct `tokens`",
        measured, tokens_of(sizes));
  return resliced(profile, sizes);
}

Costs Pricing::costs(const Schedule& schedule, std::int64_t tokens) const {
  if (!costs_file.empty())
    return parse_file(costs_file, kMaxCostsBytes, [&](const std::string& text) {
      Costs costs = redeal ? sluice::redeal(stage_costs_from_json(text), schedule)
                           : costs_from_json(text, schedule);
      check_measured_length(
          costs, schedule.slice_sizes.empty() ? tokens : tokens_of(schedule.slice_sizes));
      return with_slices_of(schedule, std::move(costs));
    });
  if (reduce_time > 0 && !schedule.has(OpKind::ReduceGrad))
    throw user_error(
        "`reduce_time` is {}: {} has no REDUCE_GRAD; let sluice schedule --reduce add it or leave "
        "the `field` out",
        number(reduce_time), schedule.name);
  if (update_time > 0 && !schedule.has(OpKind::Update))
    throw user_error("`update_time` is {}: {} has no UPDATE; leave the `field` out",
                     number(update_time), schedule.name);
  Costs costs = unit_costs(schedule, times, comm, keep_after_i, shares(schedule));
  if (!contention.empty()) check_contention(contention, schedule.num_devices(), "`contention`");
  costs.contention = contention;
  if (reduce_time > 0) {
    costs.reduce.assign(static_cast<std::size_t>(schedule.num_stages()), reduce_time);
    costs.data_link.bytes_per_time = 1;
  }
  if (update_time > 0)
    costs.update.assign(static_cast<std::size_t>(schedule.num_stages()), update_time);
  return costs;
}

void Slicing::balance(const Pricing& pricing, std::int64_t stated) {
  if (!balanced) return;
  const auto slicing = [&] {
    return BalancedSlicing{
        .length = tokens,
        .slices = slices,
        .multiple = multiple > 0 ? multiple : default_slice_multiple(tokens, slices)};
  };
  if (pricing.model) {
    sizes = balanced_slice_sizes(pricing.model->shape, RecomputeLevel::none, slicing());
    return;
  }
  if (pricing.costs_file.empty())
    throw user_error(
        "`slice_sizes` is 'balanced': no model says how much work a token is; give `model` {}, or "
        "`costs` FILE of slices that were measured",
        join(known_model_names(), " | "));
  const auto [work, measured] = profiled_work(pricing.costs_file);
  if (stated > 0 && tokens != measured)
    throw user_error("`tokens` is {}: {} was measured with {}; leave `tokens` out", tokens,
                     pricing.costs_file, measured);
  tokens = static_cast<int>(measured);
  sizes = balanced_slice_sizes(work, slicing());
}

std::string slice_sizes_text(const std::vector<std::int64_t>& sizes) {
  if (sizes.size() <= 8) return fmt::format("{} tokens", fmt::join(sizes, ", "));
  return fmt::format("{}, ..., {} tokens", sizes.front(), sizes.back());
}

}  // namespace sluice
