#include "sluice/cuda/device.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "sluice/base/error.h"

namespace sluice::cuda {
namespace {

// Of the driver, which a program that only may run on a GPU is not linked with.
template <typename Function>
Function driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, 13000, cudaEnableDefault, &result));
  if (!found)
    throw user_error(
        "the GPU's driver has no {}: SM partitions take a driver of CUDA 12.4 or later", name);
  return reinterpret_cast<Function>(found);
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver<decltype(&cuGetErrorString)>("cuGetErrorString")(result, &text);
  throw InternalError(fmt::format("{}: {}", what, text ? text : "unknown error"));
}

}  // namespace

std::string why_not() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return fmt::format("no GPU can be used: {}", cudaGetErrorString(error));
  }
  return count > 0 ? "" : "this machine has no GPU";
}

std::string device_name(int device) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->name;
}

int num_devices() { return why_not().empty() ? static_cast<int>(c10::cuda::device_count()) : 0; }

struct Moment::State {
  cudaEvent_t event = nullptr;
};

Moment::Moment() : state_(std::make_unique<State>()) {
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&state_->event, cudaEventBlockingSync));
}
Moment::~Moment() {
  if (state_) cudaEventDestroy(state_->event);
}
Moment::Moment(Moment&&) noexcept = default;
Moment& Moment::operator=(Moment&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void Moment::record() {
  C10_CUDA_CHECK(cudaEventRecord(state_->event, c10::cuda::getCurrentCUDAStream().stream()));
}

void Moment::precede() const {
  C10_CUDA_CHECK(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream().stream(), state_->event, 0));
}

void Moment::wait() const { C10_CUDA_CHECK(cudaEventSynchronize(state_->event)); }

double Moment::seconds_since(const Moment& start) const {
  float milliseconds = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.state_->event, state_->event));
  return static_cast<double>(milliseconds) * 1e-3;
}

struct Partitions::State {
  int device = 0;
  int sms = 0;
  std::vector<CUgreenCtx> contexts;
  std::vector<CUstream> streams;
};

Partitions::Partitions(int device, int count, int sms) : state_(std::make_unique<State>()) {
  state_->device = device;
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  C10_CUDA_CHECK(cudaFree(nullptr));  // the driver knows the device from now on
  CUdevice handle{};
  check(driver<decltype(&cuDeviceGet)>("cuDeviceGet")(&handle, device), "cuDeviceGet");
  CUdevResource all{};
  check(driver<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource")(
            handle, &all, CU_DEV_RESOURCE_TYPE_SM),
        "cuDeviceGetDevResource");
  constexpr int kStep = 8;  // SMs come in groups of so many
  if (sms == 0) sms = std::max(kStep, static_cast<int>(all.sm.smCount) / count / kStep * kStep);
  std::vector<CUdevResource> parts(static_cast<std::size_t>(count));
  CUdevResource rest{};
  auto found = static_cast<unsigned>(count);
  const CUresult split =
      driver<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount")(
          parts.data(), &found, &all, &rest, 0, static_cast<unsigned>(sms));
  if (split != CUDA_SUCCESS || static_cast<int>(found) < count)
    throw user_error(
        "cluster.partitions is {} of {} SMs each: this GPU has {} SMs, which make {} such parts; "
        "use "
        "fewer or smaller ones",
        count, sms, all.sm.smCount, split == CUDA_SUCCESS ? found : 0);
  state_->sms = static_cast<int>(parts[0].sm.smCount);
  for (CUdevResource& part : parts) {
    CUdevResourceDesc description{};
    check(driver<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc")(&description,
                                                                                    &part, 1),
          "cuDevResourceGenerateDesc");
    CUgreenCtx context{};
    check(driver<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate")(&context, description, handle,
                                                                  CU_GREEN_CTX_DEFAULT_STREAM),
          "cuGreenCtxCreate");
    state_->contexts.push_back(context);
    CUstream stream{};
    check(driver<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate")(
              &stream, context, CU_STREAM_NON_BLOCKING, 0),
          "cuGreenCtxStreamCreate");
    state_->streams.push_back(stream);
  }
}

Partitions::~Partitions() {
  for (CUstream stream : state_->streams)
    cudaStreamDestroy(stream);
  const auto destroy = driver<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy");
  for (CUgreenCtx context : state_->contexts)
    destroy(context);
}

int Partitions::count() const { return static_cast<int>(state_->streams.size()); }
int Partitions::sms() const { return state_->sms; }

struct RankStream::State {
  explicit State(const c10::cuda::CUDAStream& stream) : guard(stream) {}
  // cuBLAS cuts products to fit the SMs that it expects: without a word the whole GPU's, even on
  // the stream of a partition.
  State(const c10::cuda::CUDAStream& stream, int sms) : State(stream) {
    // The allocator, and this thread, may have had no business with the GPU yet.
    at::globalContext().lazyInitDevice(at::kCUDA);
    C10_CUDA_CHECK(cudaSetDevice(stream.device_index()));
    products = at::cuda::getCurrentCUDABlasHandle();
    TORCH_CUDABLAS_CHECK(cublasSetSmCountTarget(products, sms));
  }
  ~State() {
    if (products) cublasSetSmCountTarget(products, 0);  // another thread may get it next
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  c10::cuda::CUDAStreamGuard guard;
  cublasHandle_t products = nullptr;  // the thread's, on a partition
};

RankStream::RankStream(int device)
    : state_(std::make_unique<State>(
          c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device)))) {}

RankStream::RankStream(const Partitions& partitions, int part)
    : state_(
          std::make_unique<State>(c10::cuda::getStreamFromExternal(
                                      partitions.state_->streams.at(static_cast<std::size_t>(part)),
                                      static_cast<c10::DeviceIndex>(partitions.state_->device)),
                                  partitions.sms())) {}

RankStream::~RankStream() = default;

void synchronize() { c10::cuda::getCurrentCUDAStream().synchronize(); }

void use_on_this_stream(const at::Tensor& tensor) {
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(),
                                                c10::cuda::getCurrentCUDAStream());
}

MemoryUse memory_use(int device) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {.peak = stats.allocated_bytes[0].peak,
          .allocated = stats.allocated_bytes[0].current,
          .reserved = stats.reserved_bytes[0].current,
          .total = static_cast<std::int64_t>(total)};
}

void reset_peak(int device) {
  c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
}

}  // namespace sluice::cuda
