#include "sluice/cost/profiled_slices.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "sluice/base/error.h"

namespace sluice {
namespace {

// Least squares over the slices, in units of the whole sequence so that both terms are of one size.
// A negative term is noise: the other one alone then fits best.
WorkTerms fit(std::span<const std::int64_t> sizes, const std::function<double(int)>& time) {
  const std::vector<std::int64_t> bounds = slice_bounds(sizes);
  const auto length = static_cast<double>(bounds.back());
  double xx = 0, xy = 0, yy = 0, xt = 0, yt = 0;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    const double begin = static_cast<double>(bounds[c]) / length;
    const double end = static_cast<double>(bounds[c + 1]) / length;
    const double x = end - begin, y = end * end - begin * begin, t = time(static_cast<int>(c));
    xx += x * x;
    xy += x * y;
    yy += y * y;
    xt += x * t;
    yt += y * t;
  }
  const double determinant = xx * yy - xy * xy;
  double linear = (xt * yy - yt * xy) / determinant;
  double quadratic = (yt * xx - xt * xy) / determinant;
  if (quadratic < 0) {
    linear = xt / xx;
    quadratic = 0;
  } else if (linear < 0) {
    linear = 0;
    quadratic = yt / yy;
  }
  return {linear / length, quadratic / (length * length)};
}

constexpr double OpCosts::*kTimes[] = {&OpCosts::f, &OpCosts::i, &OpCosts::w, &OpCosts::b};
constexpr double OpCosts::*kBytes[] = {&OpCosts::after_f,      &OpCosts::after_i,
                                       &OpCosts::kv,           &OpCosts::kv_gradient,
                                       &OpCosts::sent_forward, &OpCosts::sent_backward};

}  // namespace

WorkTerms fitted_terms(const Costs& profile, std::span<const std::int64_t> sizes) {
  SLUICE_CHECK(sizes.size() > 1 && static_cast<int>(sizes.size()) == profile.num_slices(),
               "{} sizes of {} slices", sizes.size(), profile.num_slices());
  const WorkTerms terms = fit(sizes, [&](int slice) {
    double sum = 0;
    for (int stage = 0; stage < profile.num_stages(); ++stage) {
      const OpCosts& op = profile.at(stage, slice);
      sum += op.f + op.i + op.w;
    }
    return sum;
  });
  if (terms.linear + terms.quadratic <= 0)
    throw user_error("costs: all ops take no time: measure again (sluice profile)");
  return terms;
}

Costs resliced(const Costs& profile, std::span<const std::int64_t> sizes) {
  const std::vector<std::int64_t> bounds = slice_bounds(sizes);
  SLUICE_CHECK(sizes.size() == profile.slice_sizes.size() && sizes.size() > 1 &&
                   bounds.back() == slice_bounds(profile.slice_sizes).back(),
               "{} sizes of {} slices", sizes.size(), profile.slice_sizes.size());
  const std::vector<double> shares = work_shares({.linear = 1}, sizes);
  Costs out = profile;
  out.slice_sizes.assign(sizes.begin(), sizes.end());
  for (int stage = 0; stage < profile.num_stages(); ++stage) {
    for (const auto field : kTimes) {
      const WorkTerms terms =
          fit(profile.slice_sizes, [&](int slice) { return profile.at(stage, slice).*field; });
      for (std::size_t c = 0; c < sizes.size(); ++c)
        out.at(stage, static_cast<int>(c)).*field = terms.of(bounds[c], bounds[c + 1]);
    }
    for (const auto field : kBytes) {
      double sum = 0;
      for (int slice = 0; slice < profile.num_slices(); ++slice)
        sum += profile.at(stage, slice).*field;
      for (std::size_t c = 0; c < sizes.size(); ++c)
        out.at(stage, static_cast<int>(c)).*field = sum * shares[c];
    }
  }
  return out;
}

}  // namespace sluice
