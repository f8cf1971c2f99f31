#include "cuda/over_host.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "sluice/cuda/device.h"

namespace sluice::test {
namespace {

bool on_gpu(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  cudaPointerAttributes attributes{};
  C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, bytes.data()));
  return attributes.type == cudaMemoryTypeDevice;
}

void copy_now(std::byte* to, const std::byte* from, std::size_t bytes) {
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault,
                                 c10::cuda::getCurrentCUDAStream().stream()));
  cuda::synchronize();
}

class HostTransfer : public Transfer {
 public:
  HostTransfer(Communicator& inner, std::unique_ptr<std::byte[]> host, std::span<std::byte> target,
               Request request)
      : inner_(inner), host_(std::move(host)), target_(target), request_(std::move(request)) {}

  void wait() override {
    inner_.wait(request_);
    arrive();
  }
  bool test() override {
    if (!inner_.test(request_)) return false;
    arrive();
    return true;
  }

 private:
  void arrive() {
    if (!target_.empty()) copy_now(target_.data(), host_.get(), target_.size());
  }

  Communicator& inner_;
  std::unique_ptr<std::byte[]> host_;
  std::span<std::byte> target_;  // empty: of a send
  Request request_;
};

class OverHost : public Communicator {
 public:
  OverHost(Communicator& inner, std::unique_ptr<Communicator> owned)
      : Communicator(inner.rank(), inner.world_ranks()), inner_(inner), owned_(std::move(owned)) {}

  bool moves_device_memory() const override { return true; }

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    if (!on_gpu(bytes)) return inner_.post_send(lane, to, bytes, label);
    auto host = std::make_unique<std::byte[]>(bytes.size());
    copy_now(host.get(), bytes.data(), bytes.size());
    Request request = inner_.post_send(lane, to, {host.get(), bytes.size()}, label);
    return Request(std::make_unique<HostTransfer>(inner_, std::move(host), std::span<std::byte>(),
                                                  std::move(request)));
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    if (!on_gpu(bytes)) return inner_.post_recv(lane, from, bytes, label);
    auto host = std::make_unique<std::byte[]>(bytes.size());
    Request request = inner_.post_recv(lane, from, {host.get(), bytes.size()}, label);
    return Request(
        std::make_unique<HostTransfer>(inner_, std::move(host), bytes, std::move(request)));
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    std::unique_ptr<Communicator> made = inner_.group(ranks);
    if (!made) return nullptr;
    Communicator& inner = *made;
    return std::make_unique<OverHost>(inner, std::move(made));
  }

  void fail(const std::exception_ptr& cause) override { inner_.fail(cause); }
  void throw_if_failed() override { inner_.throw_if_failed(); }

 private:
  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;  // inner_, where this is a group
};

}  // namespace

std::unique_ptr<Communicator> over_host(Communicator& inner) {
  return std::make_unique<OverHost>(inner, nullptr);
}

}  // namespace sluice::test
