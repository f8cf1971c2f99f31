#include "sluice/plan/flexsp/group_mix.h"

namespace sluice::flexsp {
namespace {

// Largest degrees first, as many groups of them as fit, then fewer.
bool extend(const Prices& prices, std::size_t number, int devices, GroupMix& mix, std::size_t limit,
            std::vector<GroupMix>& out) {
  const int degree = prices[number].degree;
  if (number == 0) {
    if (out.size() == limit) return false;
    mix[0] = devices / degree;
    out.push_back(mix);
    return true;
  }
  for (mix[number] = devices / degree; mix[number] >= 0; --mix[number])
    if (!extend(prices, number - 1, devices - mix[number] * degree, mix, limit, out)) return false;
  return true;
}

}  // namespace

std::optional<std::vector<GroupMix>> all_mixes(const Prices& prices, std::size_t limit) {
  std::vector<GroupMix> out;
  GroupMix mix(prices.size());
  if (!extend(prices, prices.size() - 1, prices.devices(), mix, limit, out)) return std::nullopt;
  return out;
}

std::vector<GroupMix> neighbours(const Prices& prices, const GroupMix& mix) {
  std::vector<GroupMix> out;
  for (std::size_t k = 0; k + 1 < prices.size(); ++k) {
    const int ratio = prices[k + 1].degree / prices[k].degree;
    for (int times = 1; mix[k] >= ratio * times; times *= 2) {
      out.push_back(mix);
      out.back()[k] -= ratio * times;
      out.back()[k + 1] += times;
    }
    for (int times = 1; mix[k + 1] >= times; times *= 2) {
      out.push_back(mix);
      out.back()[k] += ratio * times;
      out.back()[k + 1] -= times;
    }
  }
  return out;
}

}  // namespace sluice::flexsp
