#include "sluice/schedule/generators/slice_v.h"

#include <algorithm>

#include "sluice/base/error.h"

namespace sluice {
namespace {

bool is(const Pass& pass, OpKind kind, int chunk) {
  return pass.kind == kind && pass.chunk == chunk;
}

// The f of the first (f, B, W): the last forward of chunk 1 before the first backward.
std::size_t first_group(const PassList& list) {
  const auto backward = std::find_if(list.begin(), list.end(),
                                     [](const Pass& pass) { return pass.kind == OpKind::I; });
  auto at = backward;
  while (at != list.begin() && !is(*(at - 1), OpKind::F, 1))
    --at;
  SLUICE_CHECK(at != list.begin(), "no forward of chunk 1 before the first backward");
  return static_cast<std::size_t>(at - 1 - list.begin());
}

// Behind the last forward and the B and W that follow it.
std::size_t after_last_forward(const PassList& list) {
  std::size_t at = list.size();
  while (at > 0 && list[at - 1].kind != OpKind::F)
    --at;
  if (at < list.size() && is(list[at], OpKind::I, 1)) ++at;
  if (at < list.size() && is(list[at], OpKind::W, 1)) ++at;
  return at;
}

}  // namespace

std::vector<PassList> slice_v(const std::vector<PassList>& base, int num_slices) {
  const int extra = num_slices - 1;
  std::vector<PassList> sliced(base.size());
  for (std::size_t d = 0; d < base.size(); ++d) {
    const PassList& list = base[d];
    const auto warm = list.begin() + static_cast<std::ptrdiff_t>(first_group(list));
    const auto cool = list.begin() + static_cast<std::ptrdiff_t>(after_last_forward(list));
    PassList& out = sliced[d];
    out.reserve(list.size() + 6 * static_cast<std::size_t>(extra));
    out.insert(out.end(), list.begin(), warm);
    repeat(out, extra, {{OpKind::F, 1}, {OpKind::F, 0}});
    out.insert(out.end(), warm, cool);
    repeat(out, extra, {{OpKind::I, 0}, {OpKind::W, 0}, {OpKind::I, 1}, {OpKind::W, 1}});
    out.insert(out.end(), cool, list.end());
  }
  return sliced;
}

}  // namespace sluice
