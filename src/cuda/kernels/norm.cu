#include "sluice/cuda/kernels/launch.cuh"
#include "sluice/cuda/kernels/reduce.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kMostThreads = 512;
constexpr int kKept = 4;  // groups of a row that each thread keeps in registers

// A row to a block. Groups that registers have no room for are read again.
template <typename T, bool kLayer, bool kVector>
__global__ void __launch_bounds__(kMostThreads) norm_rows(NormCall call) {
  constexpr int N = kWidth<T>;
  __shared__ float room[2][kMaxWarps];
  const std::int64_t begin = blockIdx.x * static_cast<std::int64_t>(call.dim);
  const int dim = call.dim, first = static_cast<int>(threadIdx.x) * N,
            step = static_cast<int>(blockDim.x) * N;
  const T* x = static_cast<const T*>(call.x) + begin;
  const T* addend = call.addend ? static_cast<const T*>(call.addend) + begin : nullptr;
  T* sum = call.addend ? static_cast<T*>(call.sum) + begin : nullptr;
  float kept[kKept][N];
  float total = 0;  // of x, or for RMS norm of its squares

  // x + addend as its type holds it, which is what the backward pass will see.
  const auto take = [&](const Pack<T>& from, const Pack<T>& more, int column, float(&out)[N]) {
    widen(from, out);
    if (addend) {
      float plus[N];
      widen(more, plus);
#pragma unroll
      for (int j = 0; j < N; ++j)
        out[j] += plus[j];
      const Pack<T> rounded = narrow<T>(out);
      store<kVector>(sum + column, rounded, dim - column);
      widen(rounded, out);
    }
#pragma unroll
    for (int j = 0; j < N; ++j)
      total += kLayer ? out[j] : out[j] * out[j];
  };
  const auto read = [&](const T* from, int column) {
    return load<kVector>(from + column, dim - column);
  };
  Pack<T> raw[kKept] = {}, more[kKept] = {};
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int column = first + i * step; column < dim) {
      raw[i] = read(x, column);
      if (addend) more[i] = read(addend, column);
    }
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int column = first + i * step; column < dim) take(raw[i], more[i], column, kept[i]);
  for (int column = first + kKept * step; column < dim; column += step) {
    float out[N];
    take(read(x, column), addend ? read(addend, column) : Pack<T>{}, column, out);
  }
  const T* again = addend ? sum : x;
  const auto visit = [&](const auto& use) {
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (const int column = first + i * step; column < dim) use(column, kept[i]);
    for (int column = first + kKept * step; column < dim; column += step) {
      float values[N];
      widen(read(again, column), values);
      use(column, values);
    }
  };

  const float share = 1.f / static_cast<float>(dim);
  total = block_sum(total, room[0]);
  float mean = 0;
  if constexpr (kLayer) {
    mean = total * share;
    total = 0;
    visit([&](int column, const float(&values)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (kVector || column + j < dim) total += (values[j] - mean) * (values[j] - mean);
    });
    total = block_sum(total, room[1]);
  }
  const float rstd = rsqrtf(total * share + call.epsilon);
  if (threadIdx.x == 0) {
    if (kLayer) call.mean[blockIdx.x] = mean;
    call.rstd[blockIdx.x] = rstd;
  }
  T* y = static_cast<T*>(call.y) + begin;
  visit([&](int column, const float(&values)[N]) {
    float weight[N], out[N];
    widen(read(static_cast<const T*>(call.weight), column), weight);
#pragma unroll
    for (int j = 0; j < N; ++j)
      out[j] = (values[j] - mean) * rstd * weight[j];
    if constexpr (kLayer) {
      float bias[N];
      widen(read(static_cast<const T*>(call.bias), column), bias);
#pragma unroll
      for (int j = 0; j < N; ++j)
        out[j] += bias[j];
    }
    store<kVector>(y + column, narrow<T>(out), dim - column);
  });
}

// What a block of the backward pass is made for: kHeld groups to a thread, and blocks on an SM.
constexpr int kBackwardThreads = 256;
constexpr int resident_blocks(int held) { return held == 1 ? 3 : held == 2 ? 2 : 1; }

// Blocks take rows in turn, and each thread the same columns of every row, whose weight gradients
// it adds up: in registers for kHeld groups of them; with kMore there are others, added up in the
// block's row of the partial sums. The next row is read while this one is computed.
template <typename T, bool kLayer, bool kVector, int kHeld, bool kMore>
__global__ void __launch_bounds__(kBackwardThreads, resident_blocks(kHeld))
    norm_backward_rows(NormBackwardCall call) {
  constexpr int N = kWidth<T>;
  __shared__ float room[2][2][kMaxWarps];
  const int dim = call.dim, first = static_cast<int>(threadIdx.x) * N,
            step = static_cast<int>(blockDim.x) * N;
  const int more = kMore ? first + kHeld * step : dim;  // where a thread's other columns begin
  const T *dy = static_cast<const T*>(call.dy), *x = static_cast<const T*>(call.x),
          *weight = static_cast<const T*>(call.weight),
          *addend = static_cast<const T*>(call.addend);
  float* d_weight = call.partials + blockIdx.x * static_cast<std::int64_t>(dim);
  float* d_bias = d_weight + gridDim.x * static_cast<std::int64_t>(dim);
  const float share = 1.f / static_cast<float>(dim);

  struct Group {
    Pack<T> dy, x, addend;
  };
  const auto read = [&](std::int64_t begin, int column) {
    Group group = {};
    group.dy = load<kVector>(dy + begin + column, dim - column);
    group.x = load<kVector>(x + begin + column, dim - column);
    if (addend) group.addend = load<kVector>(addend + begin + column, dim - column);
    return group;
  };
  const auto read_weight = [&](int column) { return load<kVector>(weight + column, dim - column); };
  struct Row {
    Group groups[kHeld];
    float mean, rstd;
  };
  const auto read_row = [&](std::int64_t row) {
    Row out = {};
    out.mean = kLayer ? call.mean[row] : 0.f;
    out.rstd = call.rstd[row];
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int column = first + i * step; column < dim)
        out.groups[i] = read(row * dim, column);
    return out;
  };

  Pack<T> scale[kHeld] = {};
  float held_weight[kHeld][N] = {}, held_bias[kHeld][N] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (const int column = first + i * step; column < dim) scale[i] = read_weight(column);
  for (int column = more; column < dim; column += step)
    for (int j = 0; j < N && column + j < dim; ++j) {
      d_weight[column + j] = 0;
      if (kLayer) d_bias[column + j] = 0;
    }

  int turn = 0;
  Row next = read_row(blockIdx.x);
  for (std::int64_t row = blockIdx.x; row < call.rows; row += gridDim.x, turn ^= 1) {
    const Row now = next;
    if (row + gridDim.x < call.rows) next = read_row(row + gridDim.x);
    const std::int64_t begin = row * dim;
    float along = 0, across = 0;  // sums of (dy w) normal, and of dy w

    // Elements past the end of a row have dy = 0 and add nothing.
    const auto add_up = [&](const Group& group, const Pack<T>& scale_pack, float(&to_weight)[N],
                            float(&to_bias)[N]) {
      float d[N], in[N], w[N];
      widen(group.dy, d);
      widen(group.x, in);
      widen(scale_pack, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float normal = (in[j] - now.mean) * now.rstd;
        along += d[j] * w[j] * normal;
        to_weight[j] += d[j] * normal;
        if (kLayer) {
          across += d[j] * w[j];
          to_bias[j] += d[j];
        }
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      add_up(now.groups[i], scale[i], held_weight[i], held_bias[i]);
    for (int column = more; column < dim; column += step) {
      float to_weight[N] = {}, to_bias[N] = {};
      add_up(read(begin, column), read_weight(column), to_weight, to_bias);
      for (int j = 0; j < N && column + j < dim; ++j) {
        d_weight[column + j] += to_weight[j];
        if (kLayer) d_bias[column + j] += to_bias[j];
      }
    }

    // Two rooms for each, by turns: a thread may still read those of the row before.
    if (kLayer) across = warp_sum(across);
    along = warp_sum(along);
    if (const unsigned warps = blockDim.x / 32; warps > 1) {
      if (threadIdx.x % 32 == 0) {
        room[turn][0][threadIdx.x / 32] = along;
        room[turn][1][threadIdx.x / 32] = across;
      }
      __syncthreads();
      along = across = 0;
      for (unsigned warp = 0; warp < warps; ++warp) {
        along += room[turn][0][warp];
        if (kLayer) across += room[turn][1][warp];
      }
    }
    along *= share;
    across *= share;

    const auto finish = [&](int column, const Group& group, const Pack<T>& scale_pack) {
      float d[N], in[N], w[N], plus[N], out[N];
      widen(group.dy, d);
      widen(group.x, in);
      widen(scale_pack, w);
      widen(group.addend, plus);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float normal = (in[j] - now.mean) * now.rstd;
        out[j] = (d[j] * w[j] - across - normal * along) * now.rstd + plus[j];
      }
      store<kVector>(static_cast<T*>(call.dx) + begin + column, narrow<T>(out), dim - column);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int column = first + i * step; column < dim)
        finish(column, now.groups[i], scale[i]);
    for (int column = more; column < dim; column += step)
      finish(column, read(begin, column), read_weight(column));
  }

#pragma unroll
  for (int i = 0; i < kHeld; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (const int column = first + i * step + j; column < dim) {
        d_weight[column] = held_weight[i][j];
        if (kLayer) d_bias[column] = held_bias[i][j];
      }
}

constexpr int kSumColumns = 32, kSumRows = 16;

// The partial sums of the blocks, (2 or 1, blocks, dim), added up over blocks: 32 columns to a
// block, whose warps take rows in turn.
__global__ void add_partials(const float* partials, int blocks, int dim, float* d_weight,
                             float* d_bias) {
  __shared__ float room[kSumRows][kSumColumns];
  const int column = static_cast<int>(blockIdx.x) * kSumColumns + static_cast<int>(threadIdx.x);
  const float* from = partials + static_cast<std::int64_t>(blockIdx.y) * blocks * dim;
  float sum = 0;
  if (column < dim)
    for (int row = static_cast<int>(threadIdx.y); row < blocks; row += kSumRows)
      sum += from[static_cast<std::int64_t>(row) * dim + column];
  room[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= dim) return;
  for (int row = 1; row < kSumRows; ++row)
    sum += room[row][threadIdx.x];
  (blockIdx.y == 0 ? d_weight : d_bias)[column] = sum;
}

// How a backward pass is cut: enough blocks to fill a large GPU once, each with enough rows to be
// worth its partial sums. The same whatever the GPU is, so that sums are.
struct BackwardCut {
  int held, threads, blocks;
};
BackwardCut backward_cut(std::int64_t rows, int dim, int width, bool vector) {
  constexpr int kSms = 132;
  constexpr std::int64_t kRowsEach = 16;
  const int groups = divide_up(dim, width);
  BackwardCut cut{};
  cut.held = !vector || groups > 2 * kBackwardThreads ? 4 : groups > kBackwardThreads ? 2 : 1;
  cut.threads = warps_for(divide_up(groups, cut.held), kBackwardThreads);
  const int most = kSms * resident_blocks(cut.held) * (kBackwardThreads / cut.threads);
  cut.blocks = static_cast<int>(std::clamp<std::int64_t>(rows / kRowsEach, 1, most));
  return cut;
}

template <typename T>
bool backward_is_fast(const NormBackwardCall& call) {
  return call.dim % kWidth<T> == 0 &&
         aligned(16, call.dy, call.x, call.weight, call.addend, call.dx);
}

template <typename T, bool kLayer>
BackwardCut launch_backward(const NormBackwardCall& call, cudaStream_t stream) {
  const bool vector = backward_is_fast<T>(call);
  const BackwardCut cut = backward_cut(call.rows, call.dim, kWidth<T>, vector);
  const auto launch = [&](auto* kernel) { kernel<<<cut.blocks, cut.threads, 0, stream>>>(call); };
  const bool more = call.dim > 4 * kBackwardThreads * kWidth<T>;
  if (!vector)
    launch(norm_backward_rows<T, kLayer, false, 4, true>);
  else if (more)
    launch(norm_backward_rows<T, kLayer, true, 4, true>);
  else if (cut.held == 4)
    launch(norm_backward_rows<T, kLayer, true, 4, false>);
  else if (cut.held == 2)
    launch(norm_backward_rows<T, kLayer, true, 2, false>);
  else
    launch(norm_backward_rows<T, kLayer, true, 1, false>);
  return cut;
}

}  // namespace

void norm(const NormCall& call, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool vector = call.dim % kWidth<T> == 0 &&
                        aligned(16, call.x, call.addend, call.weight, call.bias, call.sum, call.y);
    const int threads = warps_for(divide_up(call.dim, kKept * kWidth<T>), kMostThreads);
    with_flag(call.bias != nullptr, [&](auto layer) {
      with_flag(vector, [&](auto fast) {
        norm_rows<T, decltype(layer)::value, decltype(fast)::value>
            <<<static_cast<unsigned>(call.rows), threads, 0, stream>>>(call);
      });
    });
  });
}

std::int64_t norm_partials(const NormBackwardCall& call) {
  std::int64_t blocks = 0;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    blocks = backward_cut(call.rows, call.dim, kWidth<T>, backward_is_fast<T>(call)).blocks;
  });
  return blocks * call.dim * (call.mean ? 2 : 1);
}

void norm_backward(const NormBackwardCall& call, cudaStream_t stream) {
  const bool layer_norm = call.mean != nullptr;
  BackwardCut cut{};
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    cut = layer_norm ? launch_backward<T, true>(call, stream)
                     : launch_backward<T, false>(call, stream);
  });
  add_partials<<<dim3(divide_up(call.dim, kSumColumns), layer_norm ? 2 : 1),
                 dim3(kSumColumns, kSumRows), 0, stream>>>(call.partials, cut.blocks, call.dim,
                                                           call.d_weight, call.d_bias);
}

}  // namespace sluice::cuda::kernels
