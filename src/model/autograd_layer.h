// A module of the user's own as a pipeline layer. F runs it under autograd and keeps the graph, I
// runs its whole backward, W has nothing left to do. Sequences must not be cut into slices and must
// hold one document each, unless the module says that it treats every token on its own. What it
// keeps is measured, not predicted, and recomputation levels do not apply.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/model/layer.h"

namespace sluice {

struct OwnModule {
  // (B, n, dim) -> (B, n, dim), B sequences of n tokens. Must depend on its input and parameters
  // alone, leave its input as it is, and may run several times before its first backward.
  std::function<at::Tensor(const at::Tensor&)> forward = {};
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};  // by the module's own names
  // No token looks at another: slices and packed documents are allowed.
  bool token_by_token = false;
  // Gives a parameter its first value, which may depend only on the seed and the name. Empty:
  // matrices are normally distributed with deviation 0.02; vectors are one, or zero if their name
  // ends in "bias".
  std::function<void(at::Tensor& value, std::uint64_t seed, const std::string& name)> initialise =
      {};
};

class AutogradLayer final : public Layer {
 public:
  // Parameters are named layers.N.<the module's own name>. Throws UserError for a frozen one.
  AutogradLayer(const LayerOptions& options, OwnModule module);

  std::unique_ptr<LayerState> open(std::size_t num_slices) const override;
  // These throw UserError when the module throws, or does not keep the shape.
  at::Tensor forward(const at::Tensor& x, LayerState& state, const SliceContext& context) override;
  at::Tensor input_grad(const at::Tensor& dy, LayerState& state,
                        const SliceContext& context) override;
  void weight_grad(LayerState& state, const SliceContext& context) override;
  at::Tensor evaluate(const at::Tensor& x, LayerState& state, const SliceContext& context) override;
  std::vector<Parameter>& parameters() override { return parameters_; }
  bool shardable() const override { return false; }

 private:
  void require_whole(const SliceContext& context) const;
  at::Tensor run(const at::Tensor& x) const;

  LayerOptions options_;
  OwnModule module_;
  std::vector<Parameter> parameters_;
};

// Wraps a torch::nn module with `Tensor forward(Tensor)`. `own` may give the rest of OwnModule.
template <typename Module>
std::unique_ptr<Layer> wrap_module(const LayerOptions& options, std::shared_ptr<Module> module,
                                   OwnModule own = {}) {
  module->to(options.kind.device, options.kind.dtype);
  own.forward = [module](const at::Tensor& x) { return module->forward(x); };
  for (const auto& item : module->named_parameters())
    own.parameters.emplace_back(item.key(), item.value());
  return std::make_unique<AutogradLayer>(options, std::move(own));
}

}  // namespace sluice
