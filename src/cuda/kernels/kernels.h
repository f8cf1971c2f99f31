// Launchers of our CUDA kernels: raw pointers on the GPU, sizes, a stream. functions.h says what
// they compute, functions.cpp checks what they are given. Each gives its work to the stream and
// returns; whether that went well is cudaGetLastError(). Pointers may be null only where it says
// so. Rows lie one after the other unless strides are given; any alignment does, that of 16 bytes
// with rows of as many is fast.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::cuda::kernels {

enum class Type { f32, bf16, f16 };

struct DrawCall {
  Type type = Type::f32;
  std::int64_t count = 0;
  std::int64_t columns = 1, first_row = 0, first_column = 0;
  std::int64_t stride = 1;  // elements of a row of the whole
  std::uint64_t seed = 0;
  double deviation = 0;
  void* out = nullptr;
};
void draw_normal(const DrawCall& call, cudaStream_t stream);

struct NormCall {
  Type type = Type::f32;  // of all but the statistics
  std::int64_t rows = 0;
  int dim = 0;
  const void* x = nullptr;
  const void* addend = nullptr;  // may be null; `sum` then, too
  const void* weight = nullptr;
  const void* bias = nullptr;  // null: RMS norm; `mean` then, too
  void* sum = nullptr;
  void* y = nullptr;
  float* mean = nullptr;
  float* rstd = nullptr;
  float epsilon = 0;
};
void norm(const NormCall& call, cudaStream_t stream);

struct NormBackwardCall {
  Type type = Type::f32;  // of all but the statistics and what follows dx
  std::int64_t rows = 0;
  int dim = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* addend = nullptr;  // may be null
  const float* mean = nullptr;   // null: RMS norm; d_bias then, too
  const float* rstd = nullptr;
  void* dx = nullptr;
  float* d_weight = nullptr;
  float* d_bias = nullptr;
  float* partials = nullptr;  // room for norm_partials(call) numbers
};
std::int64_t norm_partials(const NormBackwardCall& call);
void norm_backward(const NormBackwardCall& call, cudaStream_t stream);

enum class Gate { gelu_tanh, gelu_erf, swiglu };
struct ActivationCall {
  Type type = Type::f32;
  Gate gate = Gate::swiglu;
  std::int64_t rows = 0;
  int width = 0;             // of the result
  const void* da = nullptr;  // backward only
  const void* u = nullptr;
  void* out = nullptr;  // a, or backward du
};
void activation(const ActivationCall& call, cudaStream_t stream);
void activation_backward(const ActivationCall& call, cudaStream_t stream);

struct Table {
  const float* cosine = nullptr;  // (rows, head_dim / 2); may both be null
  const float* sine = nullptr;
  std::int64_t rows = 0;  // token t has row t mod rows
};
struct RotateCall {
  Type type = Type::f32;
  std::int64_t tokens = 0, columns = 0;
  int heads = 0, head_dim = 0;
  void* qkv = nullptr;
  Table table;
};
void rotate(const RotateCall& call, cudaStream_t stream);

// (B, heads, n, head_dim), the last of stride 1.
struct Heads {
  Type type = Type::f32;
  void* data = nullptr;
  int heads = 0;
  std::int64_t batch_stride = 0, head_stride = 0, token_stride = 0;  // in elements
};
struct JoinCall {
  std::int64_t batch = 0, length = 0;
  int head_dim = 0;
  Heads dq, dk, dv;                 // dk and dv of one type: dq's or fp32
  Heads dq_more, dk_more, dv_more;  // added; without data where there is none. Of dq's type, fp32
  void* out = nullptr;
  Table table;
};
void join_heads(const JoinCall& call, cudaStream_t stream);

struct AddKeysCall {
  static constexpr int kMaxParts = 16;
  std::int64_t batch = 0;
  int head_dim = 0;
  Heads dk, dv;  // of one type
  int parts = 0;
  bool first = false;                 // nothing is there yet to be added to
  std::int64_t begin[kMaxParts + 1];  // tokens of dk: part n has [begin[n], begin[n + 1])
  float* keys[kMaxParts];             // (batch, tokens, heads, head_dim)
  float* values[kMaxParts];
};
void add_keys(const AddKeysCall& call, cudaStream_t stream);

struct JoinTokensCall {
  static constexpr int kMaxParts = 16;
  std::int64_t batch = 0, length = 0;  // of `out`
  std::int64_t first = 0;              // token of `out` at which the parts begin
  int head_dim = 0;
  int parts = 0;
  std::int64_t begin[kMaxParts + 1];  // part n has the tokens [begin[n], begin[n + 1]) from there
  Heads part[kMaxParts];              // of one type and number of heads
  void* out = nullptr;                // (batch, length, heads, head_dim)
};
void join_tokens(const JoinTokensCall& call, cudaStream_t stream);

struct MergeCall {
  std::int64_t batch = 0, length = 0;
  int head_dim = 0;
  Heads a, b;          // a of b's type or fp32
  Heads a_lse, b_lse;  // likewise without the last dimension; fp32
};
void merge_attention(const MergeCall& call, cudaStream_t stream);

struct CrossEntropyCall {
  Type type = Type::f32;
  std::int64_t rows = 0;
  int words = 0;
  void* logits = nullptr;
  const std::int64_t* targets = nullptr;
  float scale = 1;
  bool gradient = false;
  double* loss = nullptr;
};
void cross_entropy(const CrossEntropyCall& call, cudaStream_t stream);

struct AddRowsCall {
  Type type = Type::f32;  // of d_rows
  std::int64_t count = 0, words = 0;
  int dim = 0;
  float* gradient = nullptr;
  const std::int64_t* rows = nullptr;
  const void* d_rows = nullptr;
};
void add_rows(const AddRowsCall& call, cudaStream_t stream);

struct UpdateCall {
  Type value_type = Type::f32, gradient_type = Type::f32;  // gradient fp32 or bf16
  Type moment_type = Type::f32;                            // fp32 or bf16
  std::int64_t count = 0;
  void* value = nullptr;
  float* master = nullptr;  // may be null
  const void* gradient = nullptr;
  void* first = nullptr;  // null: plain SGD; second then, too
  void* second = nullptr;
  float scale = 1, keep = 1, rate = 0, gradient_rate = 0;
  float beta1 = 0, beta2 = 0, rest1 = 1, rest2 = 1, correction = 1, epsilon = 0;
  bool stochastic = false;
  std::uint64_t seed = 0;
};
void update(const UpdateCall& call, cudaStream_t stream);

// Travels with the launch, which is why it has a fixed size.
struct Bounds {
  static constexpr int kMaxRanges = 64;
  std::int64_t at[kMaxRanges + 1];  // of elements
};
struct SquaresCall {
  Type type = Type::f32;
  const void* values = nullptr;
  int ranges = 0;
  Bounds bounds;
  double* partials = nullptr;  // room for square_partials() numbers
  double* out = nullptr;       // (ranges)
};
std::int64_t square_partials(const Bounds& bounds, int ranges);
void block_squares(const SquaresCall& call, cudaStream_t stream);

}  // namespace sluice::cuda::kernels
