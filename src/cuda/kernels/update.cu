#include "sluice/cuda/kernels/launch.cuh"
#include "sluice/cuda/kernels/rounding.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kThreads = 256;

struct None {};  // the type of moments that there are not

// Exact where moments are fp32. Where they are narrow, the memory would wait for exact ones, and
// two units in the last place of fp32 are nothing beside their own rounding.
template <typename M>
__device__ float quotient(float a, float b) {
  return sizeof(M) == 4 ? a / b : __fdividef(a, b);
}
template <typename M>
__device__ float root(float x) {
  if constexpr (sizeof(M) == 4) return sqrtf(x);
  float out;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// As in optim/update.cpp, in the same order and without fused products (see CMakeLists.txt), so
// that in fp32 the bits are the same.
template <typename M>
__device__ float updated(const UpdateCall& r, float value, float gradient, float& first,
                         float& second) {
  const float g = gradient * r.scale;
  if constexpr (std::is_same_v<M, None>) {
    return value * r.keep - r.rate * g;
  } else {
    first = first * r.beta1 + g * r.rest1;
    second = second * r.beta2 + g * g * r.rest2;
    const float size = root<M>(quotient<M>(second, r.correction)) + r.epsilon;
    return value * r.keep - quotient<M>(r.rate * first + r.gradient_rate * g, size);
  }
}

// The N elements from `begin` on, or those of them that there are.
template <typename V, bool kMaster, typename G, typename M, int N, bool kVector>
__device__ void update_group(const UpdateCall& call, std::int64_t begin) {
  constexpr bool kMoments = !std::is_same_v<M, None>;
  using S = std::conditional_t<kMoments, M, float>;
  const int valid = static_cast<int>(min(call.count - begin, static_cast<std::int64_t>(N)));
  V* value_at = static_cast<V*>(call.value) + begin;
  float* master_at = kMaster ? call.master + begin : nullptr;
  S* first_at = kMoments ? static_cast<S*>(call.first) + begin : nullptr;
  S* second_at = kMoments ? static_cast<S*>(call.second) + begin : nullptr;

  float value[N], gradient[N], first[N] = {}, second[N] = {};
  const auto gradient_pack = load<kVector, N>(static_cast<const G*>(call.gradient) + begin, valid);
  if constexpr (kMaster)
    widen(load<kVector, N>(master_at, valid), value);
  else
    widen(load<kVector, N>(value_at, valid), value);
  if constexpr (kMoments) {
    widen(load<kVector, N>(first_at, valid), first);
    widen(load<kVector, N>(second_at, valid), second);
  }
  widen(gradient_pack, gradient);
#pragma unroll
  for (int j = 0; j < N; ++j)
    value[j] = updated<M>(call, value[j], gradient[j], first[j], second[j]);

  if constexpr (kMaster) store<kVector>(master_at, narrow<float>(value), valid);
  constexpr bool kRounds = (!kMaster && sizeof(V) < 4) || (kMoments && sizeof(S) < 4);
  if (kRounds && call.stochastic) {
    V new_value[N];
    S new_first[N], new_second[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const std::uint64_t random = random_bits(call.seed, static_cast<std::uint64_t>(begin + j));
      new_value[j] = kMaster ? narrow<V>(value[j]) : round_by<V>(value[j], random);
      new_first[j] = round_by<S>(first[j], random >> 16);
      new_second[j] = round_by<S>(second[j], random >> 32);
    }
    store<kVector>(value_at, pack_of(new_value), valid);
    if constexpr (kMoments) {
      store<kVector>(first_at, pack_of(new_first), valid);
      store<kVector>(second_at, pack_of(new_second), valid);
    }
  } else {
    store<kVector>(value_at, narrow<V>(value), valid);
    if constexpr (kMoments) {
      store<kVector>(first_at, narrow<S>(first), valid);
      store<kVector>(second_at, narrow<S>(second), valid);
    }
  }
}

template <typename V, bool kMaster, typename G, typename M>
struct Width {  // 16 bytes of the widest
  static constexpr bool kWide = sizeof(V) == 4 || kMaster || sizeof(G) == 4 || sizeof(M) == 4;
  static constexpr int value = kWide ? 4 : 8;
};

template <typename V, bool kMaster, typename G, typename M>
__global__ void __launch_bounds__(kThreads) update_elements(UpdateCall call, bool vector) {
  constexpr int N = Width<V, kMaster, G, M>::value;
  const std::int64_t begin = (blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x) * N;
  if (vector && begin + N <= call.count)
    update_group<V, kMaster, G, M, N, true>(call, begin);
  else if (begin < call.count)
    update_group<V, kMaster, G, M, N, false>(call, begin);
}

template <typename V, bool kMaster, typename G, typename M>
void launch(const UpdateCall& call, cudaStream_t stream) {
  constexpr int N = Width<V, kMaster, G, M>::value;
  const bool vector = aligned(N * sizeof(V), call.value) && aligned(N * sizeof(G), call.gradient) &&
                      aligned(16, call.master) &&
                      aligned(std::min<std::size_t>(N * sizeof(M), 16), call.first, call.second);
  update_elements<V, kMaster, G, M>
      <<<divide_up(call.count, static_cast<std::int64_t>(kThreads * N)), kThreads, 0, stream>>>(
          call, vector);
}

template <typename V, bool kMaster, typename G>
void launch_moments(const UpdateCall& call, cudaStream_t stream) {
  if (!call.first)
    launch<V, kMaster, G, None>(call, stream);
  else if (call.moment_type == Type::f32)
    launch<V, kMaster, G, float>(call, stream);
  else
    launch<V, kMaster, G, __nv_bfloat16>(call, stream);
}

template <typename V, bool kMaster>
void launch_gradient(const UpdateCall& call, cudaStream_t stream) {
  if (call.gradient_type == Type::f32)
    launch_moments<V, kMaster, float>(call, stream);
  else
    launch_moments<V, kMaster, __nv_bfloat16>(call, stream);
}

}  // namespace

void update(const UpdateCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  with_type(call.value_type, [&](auto tag) {
    using V = typename decltype(tag)::type;
    if constexpr (sizeof(V) == 4) {
      launch_gradient<V, false>(call, stream);
    } else {
      with_flag(call.master != nullptr,
                [&](auto master) { launch_gradient<V, decltype(master)::value>(call, stream); });
    }
  });
}

}  // namespace sluice::cuda::kernels
