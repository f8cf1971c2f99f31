#include "sluice/cuda/products.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/cuda/device.h"

namespace sluice::cuda {
namespace {

constexpr int kCandidates = 16;
constexpr std::int64_t kSample = 512;  // rows at each end of a result whose bits are compared
constexpr int kRounds = 3;             // the best of so many counts
constexpr double kLong = 5e-3;         // seconds: of a product that takes longer, one round

// A tensor's matrix as cuBLAS sees it, column after column.
struct Matrix {
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool transposed = false;  // against a tensor whose rows are contiguous
};

std::optional<Matrix> matrix_of(const at::Tensor& x) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  if (x.stride(1) == 1 && x.stride(0) >= columns) return Matrix{columns, rows, x.stride(0), false};
  if (x.stride(0) == 1 && x.stride(1) >= rows) return Matrix{rows, columns, x.stride(1), true};
  return std::nullopt;
}

std::int64_t alignment(const at::Tensor& x) {
  constexpr std::uintptr_t kMost = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(x.const_data_ptr());
  return static_cast<std::int64_t>(std::min(kMost, address & -address));
}

cudaDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBFloat16: return CUDA_R_16BF;
    case at::kHalf: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

// One product for cuBLAS: of a row-contiguous result, the transpose of all of it.
struct Call {
  const at::Tensor& a;
  const at::Tensor& b;
  const at::Tensor& bias;
  bool adds = false;
  Matrix first, second, result;  // of b, a and the result
  int sms = 0;                   // 0: all
};

// What the choice of an algorithm may depend on.
using Key = std::array<std::int64_t, 18>;

Key key_of(const Call& call, const at::Tensor& out) {
  return {call.first.rows,
          call.first.columns,
          call.first.stride,
          call.first.transposed,
          call.second.columns,
          call.second.stride,
          call.second.transposed,
          call.result.columns,
          call.result.stride,
          type_of(call.a),
          type_of(out),
          call.adds,
          call.bias.defined() ? alignment(call.bias) : 0,
          alignment(call.a),
          alignment(call.b),
          alignment(out),
          call.sms,
          out.device().index()};
}

template <typename T, cublasStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_) destroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* out() { return &handle_; }
  operator T() const { return handle_; }

 private:
  T handle_ = nullptr;
};

// cuBLAS's description of a product, made for each call.
class Description {
 public:
  Description(const Call& call, const at::Tensor& out) {
    TORCH_CUDABLAS_CHECK(
        cublasLtMatmulDescCreate(operation_.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, call.first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, call.second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (call.sms > 0) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{call.sms});
    if (call.bias.defined()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias.const_data_ptr());
    }
    create(first_, call.first, type_of(call.b));
    create(second_, call.second, type_of(call.a));
    create(result_, call.result, type_of(out));
  }

  std::vector<cublasLtMatmulAlgo_t> algorithms(const Call& call, const at::Tensor& out) const {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(preference.out()));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      TORCH_CUDABLAS_CHECK(
          cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, at::cuda::getCUDABlasLtWorkspaceSize());
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
           static_cast<std::uint32_t>(alignment(call.b)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
           static_cast<std::uint32_t>(alignment(call.a)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(alignment(out)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(alignment(out)));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        at::cuda::getCurrentCUDABlasLtHandle(), operation_, first_, second_, result_, result_,
        preference, kCandidates, found.data(), &count);
    std::vector<cublasLtMatmulAlgo_t> out_of;
    if (status != CUBLAS_STATUS_SUCCESS) return out_of;
    for (int n = 0; n < count; ++n)
      if (const auto& one = found[static_cast<std::size_t>(n)]; one.state == CUBLAS_STATUS_SUCCESS)
        out_of.push_back(one.algo);
    return out_of;
  }

  void run(const Call& call, const cublasLtMatmulAlgo_t& algorithm, at::Tensor& out) const {
    const float one = 1, before = call.adds ? 1 : 0;
    void* into = out.mutable_data_ptr();
    TORCH_CUDABLAS_CHECK(cublasLtMatmul(
        at::cuda::getCurrentCUDABlasLtHandle(), operation_, &one, call.b.const_data_ptr(), first_,
        call.a.const_data_ptr(), second_, &before, into, result_, into, result_, &algorithm,
        at::cuda::getCUDABlasLtWorkspace(), at::cuda::getCUDABlasLtWorkspaceSize(),
        c10::cuda::getCurrentCUDAStream().stream()));
  }

 private:
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t name, const Value& value) {
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, name, &value, sizeof(value)));
  }
  static void create(Layout& layout, const Matrix& matrix, cudaDataType_t type) {
    TORCH_CUDABLAS_CHECK(
        cublasLtMatrixLayoutCreate(layout.out(), type, static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.columns), matrix.stride));
  }

  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout first_, second_, result_;
};

void by_aten(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool adds,
             at::Tensor& out) {
  if (!adds && bias.defined())
    at::addmm_out(out, bias, a, b);
  else if (!adds)
    at::mm_out(out, a, b);
  else if (out.scalar_type() != a.scalar_type())
    at::addmm_out(out, out, a, b, out.scalar_type());
  else
    out.addmm_(a, b);
}

// Rows at both ends, bit by bit.
at::Tensor bits_of(const at::Tensor& out) {
  const at::Tensor some =
      out.size(0) <= 2 * kSample
          ? out.clone()
          : at::cat({out.slice(0, 0, kSample), out.slice(0, out.size(0) - kSample)});
  return some.view(some.element_size() == 2 ? at::kShort : at::kInt);
}

}  // namespace

struct Products::State {
  mutable std::mutex mutex;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> chosen;  // none: by ATen
  Tried tried;

  const std::optional<cublasLtMatmulAlgo_t>& choice(const Call& call,
                                                    const Description& description,
                                                    at::Tensor& out) {
    const std::lock_guard lock(mutex);
    const Key key = key_of(call, out);
    const auto found = chosen.find(key);
    if (found != chosen.end()) return found->second;
    const auto start = std::chrono::steady_clock::now();
    const auto algorithms = description.algorithms(call, out);
    std::optional<cublasLtMatmulAlgo_t> best;
    if (!algorithms.empty()) best = fastest(algorithms, call, description, out);
    tried.shapes += 1;
    tried.algorithms += static_cast<std::int64_t>(algorithms.size());
    tried.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return chosen.emplace(key, best).first->second;
  }

  cublasLtMatmulAlgo_t fastest(const std::vector<cublasLtMatmulAlgo_t>& algorithms,
                               const Call& call, const Description& description, at::Tensor& out) {
    at::Tensor into = out, wanted;
    try {
      if (call.adds) into = at::empty_strided(out.sizes(), out.strides(), out.options());
      std::size_t best = 0;
      double least = 0;
      for (std::size_t n = 0; n < algorithms.size(); ++n) {
        if (call.adds)
          into.copy_(out);
        else
          into.zero_();
        const auto seconds = [&] {
          Moment start, end;
          start.record();
          description.run(call, algorithms[n], into);
          end.record();
          end.wait();
          return end.seconds_since(start);
        };
        try {
          seconds();  // may have to load the kernel
        } catch (const c10::Error&) {
          if (n == 0) throw;
          continue;
        }
        double fewest = seconds();
        const at::Tensor bits = bits_of(into);  // where it adds, of a second product to the first
        if (n == 0) wanted = bits;
        if (!at::equal(bits, wanted)) {
          ++tried.of_other_bits;
          continue;
        }
        for (int round = 1; round < (fewest < kLong ? kRounds : 1); ++round)
          fewest = std::min(fewest, seconds());
        if (n == 0 || fewest < least) {
          least = fewest;
          best = n;
        }
      }
      return algorithms[best];
    } catch (const c10::OutOfMemoryError&) {
      return algorithms[0];  // no room to try: the bits are the same
    }
  }
};

Products::Products() : state_(std::make_unique<State>()) {}
Products::~Products() = default;

void Products::compute(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool adds,
                       at::Tensor& out) {
  SLUICE_CHECK(!(adds && bias.defined()), "a product that adds has no bias");
  const auto type = a.scalar_type();
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  const auto second = matrix_of(a), first = matrix_of(b), result = matrix_of(out);
  if (!narrow || !first || !second || !result || result->transposed || a.numel() == 0 ||
      b.numel() == 0)
    return by_aten(a, b, bias, adds, out);
  SLUICE_CHECK(a.size(1) == b.size(0) && out.size(0) == a.size(0) && out.size(1) == b.size(1),
               "{} x {} times {} x {} is not {} x {}", a.size(0), a.size(1), b.size(0), b.size(1),
               out.size(0), out.size(1));
  SLUICE_CHECK(b.scalar_type() == type && (out.scalar_type() == type || !bias.defined()),
               "a product of {} and {} into {}", c10::toString(type),
               c10::toString(b.scalar_type()), c10::toString(out.scalar_type()));
  Call call{a, b, bias, adds, *first, *second, *result};
  TORCH_CUDABLAS_CHECK(cublasGetSmCountTarget(at::cuda::getCurrentCUDABlasHandle(), &call.sms));
  const Description description(call, out);
  if (const auto& algorithm = state_->choice(call, description, out))
    description.run(call, *algorithm, out);
  else
    by_aten(a, b, bias, adds, out);
}

Products::Tried Products::tried() const {
  const std::lock_guard lock(state_->mutex);
  return state_->tried;
}

Products& products() {
  static Products all;
  return all;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  products().compute(a, b, bias, false, out);
  return out;
}

void product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  products().compute(a, b, {}, false, out);
}

void add_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  products().compute(a, b, {}, true, out);
}

}  // namespace sluice::cuda
