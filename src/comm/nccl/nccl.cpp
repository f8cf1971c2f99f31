#include "sluice/comm/nccl/nccl.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "sluice/base/error.h"
#include "sluice/comm/nccl/world.h"

namespace sluice {
namespace {

static_assert(sizeof(LinkId) == sizeof(ncclUniqueId));

// A kernel that waits for the other end keeps its SMs, so that each gets few: enough for a link,
// and little of the GPU where several wait. NCCL_MAX_CTAS overrides it.
constexpr int kMaxSms = 4;

void check(ncclResult_t result, const char* what, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw std::runtime_error(
      fmt::format("{}: {} ({})", what, ncclGetErrorString(result), ncclGetLastError(communicator)));
}

class Event : public GpuMoment {
 public:
  Event() { C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() override { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void precede(cudaStream_t stream) const {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }
  void precede() const override { precede(c10::cuda::getCurrentCUDAStream().stream()); }
  bool passed() const override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    C10_CUDA_CHECK(state);
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// One NCCL communicator. Its calls return at once and are looked after here, because one that
// blocks for the other end could not be ended.
class NcclLink : public GpuLink {
 public:
  explicit NcclLink(const LinkEnd& end) : end_(end) {}
  // Ends what runs, which lets go of the memory, and frees the communicator: without the other end,
  // which may have gone.
  ~NcclLink() override {
    if (communicator_ != nullptr) ncclCommAbort(communicator_);
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // Meets the other end; false once it is asked to stop.
  bool connect(int device, const std::stop_token& stop) {
    C10_CUDA_CHECK(cudaSetDevice(device));
    int least = 0, greatest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
    ncclUniqueId id;
    std::memcpy(&id, end_.id.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMaxSms;
    check(ncclCommInitRankConfig(&communicator_, end_.size, id, end_.place, &config),
          "ncclCommInitRank");
    return settle("ncclCommInitRank", stop);
  }

  std::shared_ptr<const GpuMoment> move(const std::optional<GpuPart>& out,
                                        const std::optional<GpuPart>& in,
                                        const std::stop_token& stop) override {
    for (const std::optional<GpuPart>* part : {&out, &in})
      if (*part) static_cast<const Event&>(*(*part)->ready).precede(stream_);
    const int peer = end_.size - 1 - end_.place;
    check(ncclGroupStart(), "ncclGroupStart");
    if (out)
      check(ncclSend(out->data, out->bytes, ncclUint8, peer, communicator_, stream_), "ncclSend",
            communicator_);
    if (in)
      check(ncclRecv(in->data, in->bytes, ncclUint8, peer, communicator_, stream_), "ncclRecv",
            communicator_);
    check(ncclGroupEnd(), "ncclGroupEnd", communicator_);
    if (!settle(out ? "ncclSend" : "ncclRecv", stop)) return nullptr;
    auto done = std::make_shared<Event>();
    done->record(stream_);
    return done;
  }

  std::string trouble() override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return "";
    return fmt::format("{} ({})", ncclGetErrorString(state), ncclGetLastError(communicator_));
  }

 private:
  // Whether what was begun has been done; false once it is asked to stop.
  bool settle(const char* what, const std::stop_token& stop) {
    for (int round = 0;; ++round) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(communicator_, &state), what, communicator_);
      check(state, what, communicator_);
      if (state == ncclSuccess) return true;
      if (stop.stop_requested()) return false;
      if (round < 50)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  const LinkEnd end_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
};

class CudaGpu : public Gpu {
 public:
  explicit CudaGpu(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}

  bool holds(const std::byte* memory) const override {
    cudaPointerAttributes attributes{};
    C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory));
    if (attributes.type != cudaMemoryTypeDevice) return false;
    SLUICE_CHECK(attributes.device == device_, "memory of GPU {} is given to the rank of GPU {}",
                 attributes.device, device_);
    return true;
  }

  std::unique_ptr<const GpuMoment> now() const override {
    const c10::cuda::CUDAGuard guard(device_);
    auto event = std::make_unique<Event>();
    event->record(c10::cuda::getCurrentCUDAStream(device_).stream());
    return event;
  }

  LinkId new_id() const override {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    LinkId made;
    std::memcpy(made.data(), &id, sizeof id);
    return made;
  }

  std::unique_ptr<GpuLink> connect(const LinkEnd& end, const std::stop_token& stop) const override {
    auto link = std::make_unique<NcclLink>(end);
    return link->connect(device_, stop) ? std::move(link) : nullptr;
  }

 private:
  const c10::DeviceIndex device_;
};

// NCCL would refuse them as well, with less to go by.
void check_distinct(Communicator& control, int device) {
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::vector<cudaUUID_t> all(static_cast<std::size_t>(control.size()));
  control.all_gather(std::as_bytes(std::span(&properties.uuid, 1)),
                     std::as_writable_bytes(std::span(all)), "GPUs");
  for (std::size_t b = 0; b < all.size(); ++b)
    for (std::size_t a = 0; a < b; ++a)
      if (std::ranges::equal(all[a].bytes, all[b].bytes))
        throw user_error(
            "comm.backend is nccl and ranks {} and {} have the same GPU ({}): NCCL takes one for "
            "each rank; start as many ranks on a machine as it has GPUs, or use comm.backend = "
            "threads to share one",
            a, b, properties.name);
}

}  // namespace

void run_nccl(Communicator& control, int device, const CommOptions& options,
              const std::function<void(Communicator&)>& body) {
  check_distinct(control, device);
  run_on_gpus(control, CudaGpu(device), options, body);
}

}  // namespace sluice
