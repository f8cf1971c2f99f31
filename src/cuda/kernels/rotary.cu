#include "sluice/cuda/kernels/launch.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kAtOnce = 2;         // heads that a thread reads before it computes
constexpr int kBlockThreads = 64;  // about: a block has whole heads

// (low, high) turned by the angles, or back.
template <bool kBack, int N>
__device__ void turn(float (&low)[N], float (&high)[N], const float (&cosine)[N],
                     const float (&sine)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float s = kBack ? -sine[j] : sine[j];
    const float a = low[j], b = high[j];
    low[j] = a * cosine[j] - b * s;
    high[j] = b * cosine[j] + a * s;
  }
}

// A thread's angles: those of `column` and the N - 1 after it, of a token.
template <bool kVector, int N>
__device__ void read_angles(const Table& table, unsigned token, int half, int column,
                            float (&cosine)[N], float (&sine)[N]) {
  const std::int64_t at =
      static_cast<std::int64_t>(token % static_cast<unsigned>(table.rows)) * half + column;
  widen(load<kVector, N>(table.cosine + at, half - column), cosine);
  widen(load<kVector, N>(table.sine + at, half - column), sine);
}

// A token to a block: threadIdx.x has a group of columns of both halves, threadIdx.y heads in turn.
template <typename T, bool kVector>
__global__ void rotate_rows(RotateCall call) {
  constexpr int N = kWidth<T>;
  const int half = call.head_dim / 2, column = static_cast<int>(threadIdx.x) * N;
  const int step = static_cast<int>(blockDim.y);
  float cosine[N], sine[N];
  read_angles<kVector>(call.table, blockIdx.x, half, column, cosine, sine);
  T* row = static_cast<T*>(call.qkv) + blockIdx.x * call.columns + column;
  for (int start = static_cast<int>(threadIdx.y); start < call.heads; start += kAtOnce * step) {
    Pack<T> low_pack[kAtOnce] = {}, high_pack[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int head = start + k * step; head < call.heads) {
        const T* from = row + static_cast<std::int64_t>(head) * call.head_dim;
        low_pack[k] = load<kVector>(from, half - column);
        high_pack[k] = load<kVector>(from + half, half - column);
      }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int head = start + k * step; head < call.heads) {
        float low[N], high[N];
        widen(low_pack[k], low);
        widen(high_pack[k], high);
        turn<false>(low, high, cosine, sine);
        T* to = row + static_cast<std::int64_t>(head) * call.head_dim;
        store<kVector>(to, narrow<T>(low), half - column);
        store<kVector>(to + half, narrow<T>(high), half - column);
      }
  }
}

// One of dq, dk and dv, of type S, with what is added to it, of type A, into its columns of a
// token's row.
template <typename T, typename S, typename A, bool kVector>
__device__ void join_part(const JoinCall& call, const Heads& part, const Heads& added,
                          int first_head, int num_heads, bool turned) {
  constexpr int N = kWidth<T>;
  // Without angles a head may have an odd size, and its second half be the shorter one.
  const int half = divide_up(call.head_dim, 2), column = static_cast<int>(threadIdx.x) * N;
  const int low_valid = half - column, high_valid = call.head_dim - half - column;
  const int step = static_cast<int>(blockDim.y);
  const unsigned length = static_cast<unsigned>(call.length);
  const S* from = static_cast<const S*>(part.data) + blockIdx.x / length * part.batch_stride +
                  blockIdx.x % length * part.token_stride + column;
  const A* more = static_cast<const A*>(added.data) + blockIdx.x / length * added.batch_stride +
                  blockIdx.x % length * added.token_stride + column;
  T* to = static_cast<T*>(call.out) +
          (static_cast<std::int64_t>(blockIdx.x) * num_heads + first_head) * call.head_dim + column;
  float cosine[N] = {}, sine[N] = {};
  if (turned) read_angles<kVector>(call.table, blockIdx.x, half, column, cosine, sine);
  for (int start = static_cast<int>(threadIdx.y); start < part.heads; start += kAtOnce * step) {
    Pack<S, N> low_pack[kAtOnce] = {}, high_pack[kAtOnce] = {};
    Pack<A, N> low_more[kAtOnce] = {}, high_more[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int head = start + k * step; head < part.heads) {
        low_pack[k] = load<kVector, N>(from + head * part.head_stride, low_valid);
        high_pack[k] = load<kVector, N>(from + head * part.head_stride + half, high_valid);
        if (!added.data) continue;
        low_more[k] = load<kVector, N>(more + head * added.head_stride, low_valid);
        high_more[k] = load<kVector, N>(more + head * added.head_stride + half, high_valid);
      }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int head = start + k * step; head < part.heads) {
        float low[N], high[N];
        widen(low_pack[k], low);
        widen(high_pack[k], high);
        if (added.data) {
          float plus_low[N], plus_high[N];
          widen(low_more[k], plus_low);
          widen(high_more[k], plus_high);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            low[j] += plus_low[j];
            high[j] += plus_high[j];
          }
        }
        if (turned) turn<true>(low, high, cosine, sine);
        T* into = to + static_cast<std::int64_t>(head) * call.head_dim;
        store<kVector>(into, narrow<T>(low), low_valid);
        store<kVector>(into + half, narrow<T>(high), high_valid);
      }
  }
}

// blockIdx.x is the token, blockIdx.y says which of dq, dk and dv; threads as in rotate_rows.
template <typename T, typename S, bool kVector>
__global__ void join_rows(JoinCall call) {
  const int heads = call.dq.heads, kv_heads = call.dk.heads, all = heads + 2 * kv_heads;
  const bool turned = call.table.cosine != nullptr;
  if (blockIdx.y == 0)
    join_part<T, T, T, kVector>(call, call.dq, call.dq_more, 0, all, turned);
  else if (blockIdx.y == 1)
    join_part<T, S, float, kVector>(call, call.dk, call.dk_more, heads, all, turned);
  else
    join_part<T, S, float, kVector>(call, call.dv, call.dv_more, heads + kv_heads, all, false);
}

dim3 block_for(int half, int width, int heads) {
  const int groups = divide_up(half, width);
  return dim3(static_cast<unsigned>(groups),
              static_cast<unsigned>(std::clamp(kBlockThreads / groups, 1, std::max(heads, 1))));
}

}  // namespace

void rotate(const RotateCall& call, cudaStream_t stream) {
  if (call.tokens == 0 || call.heads == 0) return;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int half = call.head_dim / 2;
    const bool vector = call.head_dim % (2 * kWidth<T>) == 0 && call.columns % kWidth<T> == 0 &&
                        aligned(16, call.qkv, call.table.cosine, call.table.sine);
    with_flag(vector, [&](auto fast) {
      rotate_rows<T, decltype(fast)::value>
          <<<static_cast<unsigned>(call.tokens),
             block_for(half, kWidth<T>, divide_up(call.heads, kAtOnce)), 0, stream>>>(call);
    });
  });
}

void join_heads(const JoinCall& call, cudaStream_t stream) {
  const std::int64_t tokens = call.batch * call.length;
  if (tokens == 0) return;
  with_type(call.dq.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int half = divide_up(call.head_dim, 2);
    bool vector = call.head_dim % (2 * kWidth<T>) == 0;
    for (const Heads* part :
         {&call.dq, &call.dk, &call.dv, &call.dq_more, &call.dk_more, &call.dv_more})
      vector = vector && regular(*part, kWidth<T>);
    vector = vector && aligned(16, call.out, call.table.cosine, call.table.sine);
    with_flag(vector, [&](auto fast) {
      constexpr bool kFast = decltype(fast)::value;
      const auto run = [&](auto* kernel) {
        kernel<<<dim3(static_cast<unsigned>(tokens), 3),
                 block_for(half, kWidth<T>, divide_up(call.dq.heads, kAtOnce)), 0, stream>>>(call);
      };
      if (call.dk.type == call.dq.type)
        run(join_rows<T, T, kFast>);
      else
        run(join_rows<T, float, kFast>);
    });
  });
}

}  // namespace sluice::cuda::kernels
