// Matrix products on a GPU, on the current stream. cuBLAS has several algorithms for a product and
// guesses which is the fastest; on a partition of few SMs, whose number it is told, another one is
// often up to a fifth faster. So the first time that a product of a shape comes up its proposals
// are tried, and the fastest stays. Only those stand for election that give the bits of its first
// one, in the rows that are looked at: what is computed does not depend on how long anything took.
// A build without CUDA has a version of this that throws (absent.cpp).
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
