#include "sluice/cost/flops.h"

namespace sluice {
namespace {

// Vendors' data sheets, without sparsity.
struct GpuPeak {
  std::string_view name;  // part of CUDA's name; the first row that fits counts
  double bfloat16, float32;
};
constexpr GpuPeak kPeaks[] = {
    {"GB200", 2500, 80},   {"B200", 2250, 75},     {"H200 NVL", 835, 60}, {"H200", 989, 67},
    {"H100 NVL", 835, 60}, {"H100 PCIe", 756, 51}, {"H100", 989, 67},     {"H800 PCIe", 756, 51},
    {"H800", 989, 67},     {"H20", 148, 44},       {"A100", 312, 19.5},   {"A800", 312, 19.5},
    {"L40S", 362, 91.6},
};

}  // namespace

LayerFlops layer_flops(const ModelShape& s, double length) {
  const auto matmul = [](std::int64_t in, std::int64_t out) {
    return 2 * static_cast<double>(in * out);
  };
  const double attended = s.encoder() ? length : length / 2;
  return {.qkv = matmul(s.dim, s.qkv_dim()),
          .out = matmul(s.dim, s.dim),
          .up = matmul(s.dim, s.up_dim()),
          .down = matmul(s.ffn_dim, s.dim),
          .attention = 2 * 2 * static_cast<double>(s.dim) * attended};
}

HeadFlops head_flops(const ModelShape& s) {
  return {.dense = s.encoder() ? 2 * static_cast<double>(s.dim * s.dim) : 0,
          .logits = 2 * static_cast<double>(s.dim * s.vocab_size)};
}

double step_flops(const ModelShape& shape, double tokens, double squared_lengths) {
  if (tokens == 0) return 0;
  const LayerFlops layer = layer_flops(shape, squared_lengths / tokens);
  const HeadFlops head = head_flops(shape);
  const double forward = static_cast<double>(shape.layers) * (layer.matmuls() + layer.attention) +
                         head.dense + head.logits;
  return 3 * tokens * forward;
}

double known_peak_tflops(std::string_view gpu, NumberType type) {
  if (gpu.find("MIG") != std::string_view::npos) return 0;  // a part of a GPU
  for (const GpuPeak& peak : kPeaks)
    if (gpu.find(peak.name) != std::string_view::npos)
      return type == NumberType::bfloat16 ? peak.bfloat16 : peak.float32;
  return 0;
}

}  // namespace sluice
