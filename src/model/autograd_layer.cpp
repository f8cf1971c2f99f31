#include "sluice/model/autograd_layer.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "sluice/base/error.h"

namespace sluice {
namespace {

constexpr double kDeviation = 0.02;

// Tracks the live allocations of this thread while a DebugInfoGuard has it installed. Autograd's
// saved tensors cannot be listed from C++, but what F allocated and did not free is held by the
// graph.
class LiveAllocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* pointer, std::int64_t size, std::size_t, std::size_t,
                         c10::Device) override {
    if (size > 0)
      sizes_[pointer] = size;
    else
      sizes_.erase(pointer);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t total() const {
    std::int64_t total = 0;
    for (const auto& [pointer, size] : sizes_)
      total += size;
    return total;
  }
  std::int64_t size_of(const void* pointer) const {
    const auto found = sizes_.find(pointer);
    return found == sizes_.end() ? 0 : found->second;
  }

 private:
  std::map<const void*, std::int64_t> sizes_;
};

struct GraphState final : LayerState {
  struct Slice {
    at::Tensor input;              // (B, n, dim), a leaf
    torch::autograd::Edge output;  // not the tensor: its storage is the next layer's to keep
    std::int64_t held_bytes = 0;
  };
  std::vector<Slice> slices;

  std::int64_t bytes(std::size_t slice) const override { return slices[slice].held_bytes; }
};

GraphState::Slice& slice_of(LayerState& state, const SliceContext& context) {
  return static_cast<GraphState&>(state).slices[context.slice];
}

at::Tensor as_sequences(const at::Tensor& x, const SliceContext& context) {
  return x.view({context.num_sequences, context.length(), x.size(1)});
}

// (B, n, dim) -> (T, dim)
at::Tensor as_tokens(const at::Tensor& y) {
  return y.reshape({y.size(0) * y.size(1), y.size(2)}).contiguous();
}

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  return fmt::format("{} ({})", toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// Torch's error about the user's module, without the stack trace.
UserError module_error(std::int64_t layer, const char* when, const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  return user_error("layers.{}: its module failed in {}: {}; mend the module", layer, when, text);
}

void initialise_plainly(at::Tensor& value, std::uint64_t seed, const std::string& name) {
  if (value.dim() > 1)
    initialise_normal(value, seed, name, kDeviation);
  else
    value.fill_(name.ends_with("bias") ? 0 : 1);
}

}  // namespace

AutogradLayer::AutogradLayer(const LayerOptions& options, OwnModule module)
    : options_(options), module_(std::move(module)) {
  if (options.tensor.size() > 1)
    throw user_error(
        "parallelism.tensor_parallel_degree is {}: layer {} is a module of your own, which cannot "
        "be divided; use 1",
        options.tensor.size(), options.layer);
  const auto initialise = module_.initialise ? module_.initialise : initialise_plainly;
  for (const auto& [own_name, tensor] : module_.parameters) {
    Parameter parameter;
    parameter.name = fmt::format("layers.{}.{}", options.layer, own_name);
    if (!tensor.requires_grad())
      throw user_error("{} is frozen: every parameter of a layer is trained; make it a buffer",
                       parameter.name);
    // The same storage, but no leaf of a graph: the optimizer may write to it.
    parameter.value = tensor.detach();
    parameter.gradient = at::zeros(
        tensor.sizes(), tensor.options().dtype(options.kind.gradient_dtype).requires_grad(false));
    parameter.decay = tensor.dim() > 1;
    // A scalar counts as one row.
    parameter.shard =
        whole_shard(tensor.dim() > 0 ? tensor.sizes().vec() : std::vector<std::int64_t>{1});
    initialise(parameter.value, options.seed, parameter.name);
    parameters_.push_back(std::move(parameter));
  }
}

std::unique_ptr<LayerState> AutogradLayer::open(std::size_t num_slices) const {
  auto state = std::make_unique<GraphState>();
  state->slices.resize(num_slices);
  return state;
}

void AutogradLayer::require_whole(const SliceContext& context) const {
  if (module_.token_by_token) return;
  if (context.num_slices() > 1)
    throw user_error(
        "layers.{} is a module of your own and sequences are cut into {} slices: it needs them "
        "whole; use 1 slice, or set token_by_token if no token looks at another",
        options_.layer, context.num_slices());
  if (context.group)
    throw user_error(
        "layers.{} is a module of your own and {} ranks share its sequences: it would see only a "
        "part of them; plan groups of degree 1, or set token_by_token if no token looks at another",
        options_.layer, context.degree());
  if (std::ranges::any_of(context.documents.starts,
                          [](const auto& list) { return list.size() > 1; }))
    throw user_error(
        "layers.{} is a module of your own and sequences hold several documents: it cannot keep "
        "them apart; do not pack, or set token_by_token if no token looks at another",
        options_.layer);
}

at::Tensor AutogradLayer::run(const at::Tensor& x) const {
  at::Tensor y;
  try {
    y = module_.forward(x);
  } catch (const c10::Error& error) {
    throw module_error(options_.layer, "forward", error);
  }
  if (!y.defined() || y.sizes() != x.sizes() || y.scalar_type() != x.scalar_type())
    throw user_error(
        "layers.{}: its module returns {} for an input of {}: it must keep shape and type",
        options_.layer, described(y), described(x));
  return y;
}

at::Tensor AutogradLayer::forward(const at::Tensor& x, LayerState& state,
                                  const SliceContext& context) {
  require_whole(context);
  GraphState::Slice& slice = slice_of(state, context);
  slice.input = as_sequences(x.detach(), context).detach().set_requires_grad(true);
  const auto live = std::make_shared<LiveAllocations>();
  at::Tensor out;  // shares the storage of the module's output, but is not part of the graph
  {
    const at::AutoGradMode with_graph(true);
    const c10::DebugInfoGuard observed(c10::DebugInfoKind::PROFILER_STATE, live);
    const at::Tensor y = run(slice.input);
    if (!y.requires_grad())
      throw user_error("layers.{}: the output of its module does not depend on the input",
                       options_.layer);
    slice.output = torch::autograd::impl::gradient_edge(y);
    out = y.tensor_data();
  }
  slice.held_bytes = held_bytes(slice.input) + live->total();
  // The output counts only if the graph needs it too; otherwise it belongs to the next layer.
  if (out.storage().use_count() == 1) slice.held_bytes -= live->size_of(out.storage().data());
  return as_tokens(out);
}

at::Tensor AutogradLayer::input_grad(const at::Tensor& dy, LayerState& state,
                                     const SliceContext& context) {
  GraphState::Slice& slice = slice_of(state, context);
  torch::autograd::edge_list wanted = {torch::autograd::impl::gradient_edge(slice.input)};
  for (const auto& [name, tensor] : module_.parameters)
    wanted.push_back(torch::autograd::impl::gradient_edge(tensor));
  torch::autograd::variable_list gradients;
  try {
    gradients = torch::autograd::Engine::get_default_engine().execute(
        {slice.output}, {as_sequences(dy, context)}, false, false, false, wanted);
  } catch (const c10::Error& error) {
    throw module_error(options_.layer, "backward", error);
  }
  for (std::size_t n = 0; n < parameters_.size(); ++n)
    if (gradients[n + 1].defined()) parameters_[n].gradient.add_(gradients[n + 1]);
  const at::Tensor dx = gradients[0].defined() ? gradients[0] : at::zeros_like(slice.input);
  slice = {};
  return as_tokens(dx.detach());
}

void AutogradLayer::weight_grad(LayerState&, const SliceContext&) {}

at::Tensor AutogradLayer::evaluate(const at::Tensor& x, LayerState&, const SliceContext& context) {
  require_whole(context);
  const at::NoGradGuard without_graph;
  return as_tokens(run(as_sequences(x, context)));
}

}  // namespace sluice
