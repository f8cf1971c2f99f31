#include "optim/gradient_norm.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace sluice {
namespace {

// Below ATen's grain size, so that one thread adds a block whatever their number.
constexpr std::int64_t kBlock = 16384;

template <typename T>
void put(std::vector<std::byte>& out, const T* values, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

template <typename T>
T take(std::span<const std::byte>& in) {
  T value;
  SLUICE_CHECK(in.size() >= sizeof value, "{} bytes left of a message", in.size());
  std::memcpy(&value, in.data(), sizeof value);
  in = in.subspan(sizeof value);
  return value;
}

std::vector<std::byte> pack(const BlockSums& sums, double loss) {
  std::vector<std::byte> out;
  put(out, &loss, 1);
  for (const auto& [name, blocks] : sums) {
    const std::uint64_t sizes[] = {name.size(), blocks.size()};
    put(out, sizes, 2);
    put(out, name.data(), name.size());
    put(out, blocks.data(), blocks.size());
  }
  return out;
}

}  // namespace

BlockSums block_sums(std::span<const Weight> weights) {
  BlockSums sums;
  for (const Weight& weight : weights) {
    const at::Tensor flat = weight.gradient.reshape({-1});
    std::vector<double>& blocks = sums[weight.name];
    for (std::int64_t begin = 0; begin < flat.numel(); begin += kBlock)
      blocks.push_back(flat.slice(0, begin, std::min(begin + kBlock, flat.numel()))
                           .to(at::kDouble)
                           .square_()
                           .sum()
                           .item<double>());
  }
  return sums;
}

StepTotals total(const BlockSums& mine, double loss, Communicator& world) {
  StepTotals totals;
  const auto packed = world.gather(0, pack(mine, loss), "gradient norm");
  if (world.rank() == 0) {
    BlockSums all;
    for (const std::vector<std::byte>& bytes : packed) {
      std::span<const std::byte> rest = bytes;
      totals.loss += take<double>(rest);
      while (!rest.empty()) {
        const auto name_size = take<std::uint64_t>(rest), blocks = take<std::uint64_t>(rest);
        SLUICE_CHECK(rest.size() >= name_size, "{} bytes left for a name", rest.size());
        std::string name(reinterpret_cast<const char*>(rest.data()), name_size);
        rest = rest.subspan(name_size);
        std::vector<double> values;
        for (std::uint64_t n = 0; n < blocks; ++n)
          values.push_back(take<double>(rest));
        all.emplace(std::move(name), std::move(values));  // a replica's is the same
      }
    }
    double squares = 0;
    for (const auto& [name, blocks] : all)
      for (const double block : blocks)
        squares += block;
    totals.gradient_norm = std::sqrt(squares);
  }
  world.broadcast(0, std::as_writable_bytes(std::span(&totals, 1)), "step totals");
  return totals;
}

}  // namespace sluice
