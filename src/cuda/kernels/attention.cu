#include "sluice/cuda/kernels/launch.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kAtOnce = 2;          // heads that a thread reads before it computes
constexpr int kBlockThreads = 128;  // about: a block has whole heads
// Rows that a thread reads parts of before it writes any: a GPU's memory is far away, and where
// kernels have few SMs, each of them must ask for much at a time.
constexpr int kTokensAtOnce = 4;

// What each part's output counts for in that of both, and their statistic. One that has seen no
// keys has a statistic of -inf and counts for nothing, whatever its output is.
struct Weights {
  float a, b, lse;
};
__device__ Weights weights_of(float a, float b) {
  const float most = fmaxf(a, b);
  if (most == -INFINITY) return {0.f, 0.f, most};
  const float ea = expf(a - most), eb = expf(b - most), sum = ea + eb;
  return {ea / sum, eb / sum, most + logf(sum)};
}

// A token to a block: threadIdx.x has a group of columns, threadIdx.y heads in turn.
template <typename A, typename B, bool kVector>
__global__ void merge_rows(MergeCall call) {
  constexpr int N = kWidth<B>;
  const int column = static_cast<int>(threadIdx.x) * N, valid = call.head_dim - column;
  const int heads = call.a.heads, step = static_cast<int>(blockDim.y);
  const unsigned batch = blockIdx.x / static_cast<unsigned>(call.length),
                 token = blockIdx.x % static_cast<unsigned>(call.length);
  const auto at = [&](const Heads& part, int head) {
    return batch * part.batch_stride + token * part.token_stride + head * part.head_stride;
  };
  A* a_out = static_cast<A*>(call.a.data) + column;
  const B* b_out = static_cast<const B*>(call.b.data) + column;
  float* a_lse = static_cast<float*>(call.a_lse.data);
  const float* b_lse = static_cast<const float*>(call.b_lse.data);
  // All threads go the same number of times round, for the barrier.
  for (int base = 0; base < heads; base += kAtOnce * step) {
    const int start = base + static_cast<int>(threadIdx.y);
    Pack<A, N> a_pack[kAtOnce] = {};
    Pack<B, N> b_pack[kAtOnce] = {};
    float a[kAtOnce] = {}, b[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int head = start + k * step; head < heads) {
        a[k] = a_lse[at(call.a_lse, head)];
        b[k] = b_lse[at(call.b_lse, head)];
        a_pack[k] = load<kVector, N>(a_out + at(call.a, head), valid);
        b_pack[k] = load<kVector, N>(b_out + at(call.b, head), valid);
      }
    __syncthreads();  // before anyone writes what others of the head have to read
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int head = start + k * step; head < heads) {
        const Weights weights = weights_of(a[k], b[k]);
        float out[N], more[N];
        widen(a_pack[k], out);
        widen(b_pack[k], more);
#pragma unroll
        for (int j = 0; j < N; ++j)
          out[j] = (weights.a > 0 ? weights.a * out[j] : 0.f) +
                   (weights.b > 0 ? weights.b * more[j] : 0.f);
        store<kVector>(a_out + at(call.a, head), narrow<A>(out), valid);
        if (threadIdx.x == 0) a_lse[at(call.a_lse, head)] = weights.lse;
      }
  }
}

// Which of a call's parts has a token.
template <typename Call>
__device__ int part_of(const Call& call, std::int64_t token) {
  int part = 0;
  while (token >= call.begin[part + 1])
    ++part;
  return part;
}

// kTokens of dk to a block, of dv with blockIdx.y, of sequence blockIdx.z: threads take groups of
// their columns in turn.
template <typename T, bool kVector>
__global__ void add_key_rows(AddKeysCall call) {
  constexpr int N = kWidth<T>, kTokens = kTokensAtOnce / 2;
  const Heads& heads = blockIdx.y == 0 ? call.dk : call.dv;
  const T* from[kTokens];
  float* to[kTokens];
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    const std::int64_t token = std::int64_t{blockIdx.x} * kTokens + k;
    to[k] = nullptr;
    if (token >= call.begin[call.parts]) continue;
    const int part = part_of(call, token);
    const std::int64_t begin = call.begin[part], length = call.begin[part + 1] - begin;
    to[k] = (blockIdx.y == 0 ? call.keys : call.values)[part] +
            (blockIdx.z * length + token - begin) * heads.heads * call.head_dim;
    from[k] = static_cast<const T*>(heads.data) + blockIdx.z * heads.batch_stride +
              token * heads.token_stride;
  }
  const int groups = divide_up(call.head_dim, N), all = groups * heads.heads;
  for (int g = static_cast<int>(threadIdx.x); g < all; g += static_cast<int>(blockDim.x)) {
    const int head = g / groups, column = g % groups * N, valid = call.head_dim - column;
    const std::int64_t at = head * heads.head_stride + column;
    const int into = head * call.head_dim + column;
    Pack<T, N> more[kTokens];
    Pack<float, N> had[kTokens] = {};
#pragma unroll
    for (int k = 0; k < kTokens; ++k)
      if (to[k]) {
        more[k] = load<kVector, N>(from[k] + at, valid);
        if (!call.first) had[k] = load<kVector, N>(static_cast<const float*>(to[k]) + into, valid);
      }
#pragma unroll
    for (int k = 0; k < kTokens; ++k)
      if (to[k]) {
        float sum[N], wide[N];
        widen(more[k], sum);
        widen(had[k], wide);
#pragma unroll
        for (int j = 0; j < N; ++j)
          sum[j] += wide[j];
        store<kVector>(to[k] + into, narrow<float>(sum), valid);
      }
  }
}

// kTokensAtOnce of `out` to a block, of sequence blockIdx.y.
template <typename T, bool kVector>
__global__ void join_token_rows(JoinTokensCall call) {
  constexpr int N = kWidth<T>, kTokens = kTokensAtOnce;
  const T* from[kTokens];
  T* to[kTokens];
  std::int64_t stride[kTokens];
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    const std::int64_t token = std::int64_t{blockIdx.x} * kTokens + k;
    to[k] = nullptr;
    if (token >= call.begin[call.parts]) continue;
    const int number = part_of(call, token);
    const Heads& part = call.part[number];
    from[k] = static_cast<const T*>(part.data) + blockIdx.y * part.batch_stride +
              (token - call.begin[number]) * part.token_stride;
    to[k] = static_cast<T*>(call.out) +
            (blockIdx.y * call.length + call.first + token) * part.heads * call.head_dim;
    stride[k] = part.head_stride;
  }
  const int groups = divide_up(call.head_dim, N), all = groups * call.part[0].heads;
  for (int g = static_cast<int>(threadIdx.x); g < all; g += static_cast<int>(blockDim.x)) {
    const int head = g / groups, column = g % groups * N, valid = call.head_dim - column;
    Pack<T, N> pack[kTokens];
#pragma unroll
    for (int k = 0; k < kTokens; ++k)
      if (to[k]) pack[k] = load<kVector, N>(from[k] + head * stride[k] + column, valid);
#pragma unroll
    for (int k = 0; k < kTokens; ++k)
      if (to[k]) store<kVector>(to[k] + head * call.head_dim + column, pack[k], valid);
  }
}

}  // namespace

void join_tokens(const JoinTokensCall& call, cudaStream_t stream) {
  const std::int64_t tokens = call.begin[call.parts];
  if (tokens == 0 || call.batch == 0) return;
  with_type(call.part[0].type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    bool vector = call.head_dim % kWidth<T> == 0 && aligned(16, call.out);
    for (int n = 0; n < call.parts; ++n)
      vector = vector && regular(call.part[n], kWidth<T>);
    const int threads =
        warps_for(divide_up(call.head_dim, kWidth<T>) * call.part[0].heads, kBlockThreads * 2);
    with_flag(vector, [&](auto fast) {
      join_token_rows<T, decltype(fast)::value>
          <<<dim3(divide_up(tokens, std::int64_t{kTokensAtOnce}),
                  static_cast<unsigned>(call.batch)),
             threads, 0, stream>>>(call);
    });
  });
}

void add_keys(const AddKeysCall& call, cudaStream_t stream) {
  const std::int64_t tokens = call.begin[call.parts];
  if (tokens == 0 || call.batch == 0) return;
  with_type(call.dk.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    bool vector = call.head_dim % kWidth<T> == 0 && regular(call.dk, kWidth<T>) &&
                  regular(call.dv, kWidth<T>);
    for (int n = 0; n < call.parts; ++n)
      vector = vector && aligned(16, call.keys[n], call.values[n]);
    const int threads =
        warps_for(divide_up(call.head_dim, kWidth<T>) * call.dk.heads, kBlockThreads * 2);
    with_flag(vector, [&](auto fast) {
      add_key_rows<T, decltype(fast)::value>
          <<<dim3(divide_up(tokens, std::int64_t{kTokensAtOnce / 2}), 2,
                  static_cast<unsigned>(call.batch)),
             threads, 0, stream>>>(call);
    });
  });
}

void merge_attention(const MergeCall& call, cudaStream_t stream) {
  const std::int64_t tokens = call.batch * call.length;
  if (tokens == 0 || call.a.heads == 0) return;
  with_type(call.b.type, [&](auto tag) {
    using B = typename decltype(tag)::type;
    const int groups = divide_up(call.head_dim, kWidth<B>);
    const dim3 block(static_cast<unsigned>(groups),
                     static_cast<unsigned>(
                         std::clamp(kBlockThreads / groups, 1, divide_up(call.a.heads, kAtOnce))));
    const bool vector =
        call.head_dim % kWidth<B> == 0 && regular(call.a, kWidth<B>) && regular(call.b, kWidth<B>);
    with_flag(vector, [&](auto fast) {
      constexpr bool kFast = decltype(fast)::value;
      const auto run = [&](auto* kernel) {
        kernel<<<static_cast<unsigned>(tokens), block, 0, stream>>>(call);
      };
      if (call.a.type == call.b.type)
        run(merge_rows<B, B, kFast>);
      else
        run(merge_rows<float, B, kFast>);
    });
  });
}

}  // namespace sluice::cuda::kernels
