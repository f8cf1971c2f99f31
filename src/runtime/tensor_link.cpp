#include "sluice/runtime/tensor_link.h"

#include "sluice/base/error.h"
#include "sluice/comm/tensors/group.h"

namespace sluice {
namespace {

bool hands_over(const Communicator& ranks, at::Device device) {
  return device.is_cuda() && !ranks.moves_device_memory();
}

}  // namespace

TensorMessage TensorMessage::send(Communicator& ranks, int to, const at::Tensor& tensor,
                                  std::string_view label) {
  TensorMessage message;
  message.tensor_ = tensor.contiguous();
  message.elements_ = tensor.numel();
  message.bytes_ = static_cast<std::int64_t>(tensor.nbytes());
  if (!hands_over(ranks, tensor.device())) {
    message.request_ = ranks.send(to, tensor_bytes(message.tensor_), label);
    return message;
  }
  auto parcel = std::make_unique<Parcel>(Parcel{message.tensor_, {}});
  parcel->made.record();
  message.parcel_ = std::make_unique<Parcel*>(parcel.release());
  message.request_ = ranks.send(to, std::as_bytes(std::span(message.parcel_.get(), 1)), label);
  return message;
}

TensorMessage TensorMessage::recv(Communicator& ranks, int from, std::vector<std::int64_t> sizes,
                                  const at::TensorOptions& options, std::string_view label) {
  TensorMessage message;
  message.sizes_ = std::move(sizes);
  message.elements_ = c10::multiply_integers(message.sizes_);
  message.bytes_ = message.elements_ * static_cast<std::int64_t>(options.dtype().itemsize());
  if (!hands_over(ranks, options.device())) {
    message.tensor_ = at::empty(message.sizes_, options);
    message.request_ = ranks.recv(from, tensor_bytes(message.tensor_), label);
    return message;
  }
  message.parcel_ = std::make_unique<Parcel*>(nullptr);
  message.request_ =
      ranks.recv(from, std::as_writable_bytes(std::span(message.parcel_.get(), 1)), label);
  return message;
}

at::Tensor TensorMessage::take() {
  if (!parcel_) return std::move(tensor_);
  const std::unique_ptr<Parcel> parcel(*parcel_);
  SLUICE_CHECK(parcel, "a tensor of {} bytes is taken before it was waited for", bytes_);
  SLUICE_CHECK(parcel->tensor.numel() >= elements_, "{} elements came, and {} were to",
               parcel->tensor.numel(), elements_);
  parcel->made.precede();
  // The sender may let go of it while this stream still reads.
  cuda::use_on_this_stream(parcel->tensor);
  return parcel->tensor.view({-1}).slice(0, 0, elements_).view(sizes_);
}

}  // namespace sluice
