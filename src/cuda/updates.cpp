// The functions of the optimizer: updates, and sums of squares for the gradient norm.
#include "sluice/cuda/calls.h"
#include "sluice/cuda/functions.h"

namespace sluice::cuda {

using kernels::Type;

void update(const Update& update) {
  kernels::UpdateCall call;
  const auto check = [&](const at::Tensor& x, const char* name) {
    check_on_gpu(x, name);
    SLUICE_CHECK(x.is_contiguous(), "{} is not contiguous", name);
    SLUICE_CHECK(x.numel() == update.value.numel(), "{} has {} elements, the value {}", name,
                 x.numel(), update.value.numel());
    return type_of(x, name);
  };
  call.value_type = check(update.value, "value");
  call.count = update.value.numel();
  call.value = update.value.data_ptr();
  if (update.master.defined()) {
    SLUICE_CHECK(check(update.master, "master") == Type::f32 && call.value_type != Type::f32,
                 "a master of {} for a value of {}", c10::toString(update.master.scalar_type()),
                 c10::toString(update.value.scalar_type()));
    call.master = update.master.data_ptr<float>();
  }
  call.gradient_type = check(update.gradient, "gradient");
  SLUICE_CHECK(call.gradient_type != Type::f16, "the gradient is fp16");
  call.gradient = update.gradient.const_data_ptr();
  SLUICE_CHECK(update.first_moment.defined() == update.second_moment.defined(),
               "one moment without the other");
  if (update.first_moment.defined()) {
    call.moment_type = check(update.first_moment, "first moment");
    SLUICE_CHECK(check(update.second_moment, "second moment") == call.moment_type &&
                     call.moment_type != Type::f16,
                 "moments are {} and {}", c10::toString(update.first_moment.scalar_type()),
                 c10::toString(update.second_moment.scalar_type()));
    call.first = update.first_moment.data_ptr();
    call.second = update.second_moment.data_ptr();
  }
  const UpdateRates& rates = update.rates;
  call.scale = rates.scale;
  call.keep = rates.keep;
  call.rate = rates.rate;
  call.gradient_rate = rates.gradient_rate;
  call.beta1 = rates.beta1;
  call.beta2 = rates.beta2;
  call.rest1 = rates.rest1;
  call.rest2 = rates.rest2;
  call.correction = rates.correction;
  call.epsilon = rates.epsilon;
  call.stochastic = update.stochastic;
  call.seed = update.seed;
  launch(kernels::update, call);
}

void block_squares(const at::Tensor& gradient, const std::vector<std::int64_t>& bounds,
                   at::Tensor& out) {
  check_tensor(gradient, "gradient", gradient.scalar_type(), gradient.sizes());
  check_tensor(out, "out", at::kDouble, out.sizes());
  const std::int64_t ranges = out.numel(), rows = gradient.dim() > 0 ? gradient.size(0) : 1;
  SLUICE_CHECK(ranges <= kernels::Bounds::kMaxRanges, "{} blocks of rows", ranges);
  SLUICE_CHECK(static_cast<std::int64_t>(bounds.size()) == ranges + 1, "{} bounds of {} blocks",
               bounds.size(), ranges);
  const std::int64_t width = rows > 0 ? gradient.numel() / rows : 0;
  kernels::SquaresCall call;
  call.type = type_of(gradient, "gradient");
  call.values = gradient.const_data_ptr();
  call.ranges = as_int(ranges);
  for (std::size_t n = 0; n < bounds.size(); ++n) {
    SLUICE_CHECK(bounds[n] <= rows && bounds[n] >= (n > 0 ? bounds[n - 1] : 0),
                 "bound {} is {} of {} rows", n, bounds[n], rows);
    call.bounds.at[n] = bounds[n] * width;
  }
  const at::Tensor partials =
      at::empty({kernels::square_partials(call.bounds, call.ranges)}, out.options());
  call.partials = partials.mutable_data_ptr<double>();
  call.out = out.mutable_data_ptr<double>();
  launch(kernels::block_squares, call);
}

}  // namespace sluice::cuda
