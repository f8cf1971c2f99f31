// Matrix products on a GPU, on the current stream. cuBLAS has several algorithms for a product and
// guesses which is the fastest, for the whole GPU and for products larger than a slice's: on a
// partition of few SMs the right one is up to a third faster. So the first time that a product of a
// shape comes up they are all tried, and the fastest stays. An algorithm stands for election only
// if it gives the bits of the one that cuBLAS proposes first: what is computed does not depend on
// how long anything took. A build without CUDA has a version of this that throws (absent.cpp).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

namespace sluice::cuda {

class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // out = a b, plus `bias` in every row where it is defined; out += a b if `adds`. a and b of one
  // type, rows or columns contiguous, as in a transposed tensor; out, rows contiguous, of their
  // type or fp32. Waits for the GPU where a shape is new. fp32 tensors, and tensors of other
  // strides, are left to ATen.
  void compute(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool adds,
               at::Tensor& out);

  struct Tried {
    std::int64_t shapes = 0, algorithms = 0, of_other_bits = 0;
    double seconds = 0;
  };
  Tried tried() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Those of this process.
Products& products();
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});
void product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
void add_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace sluice::cuda
