// Products against fp64 on the CPU, and the same bits whatever algorithm was the fastest.
#include "sluice/cuda/products.h"

#include "cuda/on_gpu.h"
#include "sluice/base/error.h"

namespace sluice {
namespace {

using test::distance;
using test::Placed;
using test::random;
using test::tolerance;
using test::wide;

class CudaProducts : public test::OnGpu {};

struct Shape {
  std::int64_t m, n, k;
};
// Of whole tiles and not, of rows that begin at multiples of 16 bytes and not, long sums and short.
const std::vector<Shape> kShapes = {{1, 1, 1},      {1, 64, 128},     {7, 5, 3},
                                    {33, 129, 65},  {256, 64, 64},    {128, 256, 1},
                                    {64, 64, 8192}, {1024, 384, 512}, {513, 1000, 24}};

// The same numbers, columns contiguous instead of rows.
at::Tensor by_columns(const at::Tensor& x) { return x.t().contiguous().t(); }

TEST_F(CudaProducts, AreThoseOfFp64InEveryLayout) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const Shape& s : kShapes)
      for (int layout = 0; layout < 4; ++layout) {
        SCOPED_TRACE(
            fmt::format("{} {} x {} x {}, layout {}", c10::toString(type), s.m, s.n, s.k, layout));
        const at::Tensor a = random({s.m, s.k}, type), b = random({s.k, s.n}, type),
                         bias = random({s.n}, type);
        const at::Tensor expected = wide(a).mm(wide(b));
        const at::Tensor on_a = layout & 1 ? by_columns(a.cuda()) : a.cuda();
        const at::Tensor on_b = layout & 2 ? by_columns(b.cuda()) : b.cuda();
        EXPECT_LE(distance(cuda::product(on_a, on_b), expected), tolerance(type));
        EXPECT_LE(distance(cuda::product(on_a, on_b, bias.cuda()), expected + wide(bias)),
                  tolerance(type));
        for (const auto into : {type, at::kFloat}) {
          const at::Tensor before = random({s.m, s.n}, into, 10);
          Placed out(before);
          cuda::add_product(out.tensor, on_a, on_b);
          EXPECT_LE(distance(out.tensor, expected + wide(before)), tolerance(into));
          cuda::add_product(out.tensor, on_a, on_b);
          EXPECT_LE(distance(out.tensor, 2 * expected + wide(before)), 2 * tolerance(into));
          EXPECT_TRUE(out.fence_stands());
        }
      }
}

TEST_F(CudaProducts, TakePartsOfTensors) {
  const at::Tensor a = random({300, 200}, at::kBFloat16), b = random({200, 96}, at::kBFloat16);
  const at::Tensor expected = wide(a).slice(1, 8, 72).mm(wide(b).slice(0, 3, 67));
  const at::Tensor on_a = a.cuda().slice(1, 8, 72), on_b = b.cuda().slice(0, 3, 67);
  // Rows and columns around the result stay as they are.
  at::Tensor all = at::full({310, 128}, 77, on_a.options());
  at::Tensor out = all.slice(0, 5, 305).slice(1, 16, 112);
  cuda::product_into(out, on_a, on_b);
  EXPECT_LE(distance(out, expected), tolerance(at::kBFloat16));
  out.fill_(77);
  EXPECT_TRUE(all.eq(77).all().item<bool>());
  // Neither rows nor columns contiguous: ATen's.
  const at::Tensor every_other = a.cuda().slice(1, 0, 200, 2);
  EXPECT_LE(distance(cuda::product(every_other, b.cuda().slice(0, 0, 100)),
                     wide(a).slice(1, 0, 200, 2).mm(wide(b).slice(0, 0, 100))),
            tolerance(at::kBFloat16));
}

TEST_F(CudaProducts, NothingTimesSomethingIsNothing) {
  const at::Tensor none = at::empty({0, 16}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  const at::Tensor w = at::ones({16, 8}, none.options());
  EXPECT_EQ(cuda::product(none, w).sizes(), at::IntArrayRef({0, 8}));
  at::Tensor out = at::ones({16, 8}, none.options());
  cuda::add_product(out, none.t(), at::empty({0, 8}, none.options()));
  EXPECT_TRUE(out.eq(1).all().item<bool>());
}

// Elections that find other algorithms the fastest, on all SMs and on eight. The last product is a
// long sum, which some algorithms divide among SMs: it is then added up in another order.
TEST_F(CudaProducts, BitsDoNotDependOnTheChoice) {
  const at::Tensor x = random({1024, 1024}, at::kBFloat16).cuda(),
                   w = random({3072, 1024}, at::kBFloat16).cuda(),
                   dy = random({1024, 3072}, at::kBFloat16).cuda(),
                   long_x = random({16384, 128}, at::kBFloat16).cuda(),
                   long_dy = random({16384, 192}, at::kBFloat16).cuda();
  cuda::Partitions partitions(0, 8, 8);
  for (const bool few : {false, true}) {
    std::optional<cuda::RankStream> stream;
    cuda::synchronize();
    if (few) stream.emplace(partitions, 0);
    std::vector<at::Tensor> first;
    for (int election = 0; election < 5; ++election) {
      cuda::Products products;
      std::vector<at::Tensor> now = {at::empty({1024, 3072}, x.options()),
                                     at::empty({1024, 1024}, x.options()),
                                     at::zeros({3072, 1024}, x.options().dtype(at::kFloat)),
                                     at::zeros({192, 128}, x.options())};
      products.compute(x, w.t(), {}, false, now[0]);
      products.compute(dy, w, {}, false, now[1]);
      products.compute(dy.t(), x, {}, true, now[2]);
      products.compute(dy.t(), x, {}, true, now[2]);
      products.compute(long_dy.t(), long_x, {}, true, now[3]);
      const auto tried = products.tried();
      EXPECT_EQ(tried.shapes, 4);
      EXPECT_GT(tried.algorithms, 4);
      RecordProperty("of_other_bits",
                     static_cast<int>(tried.of_other_bits));  // with --gtest_output
      if (election == 0) first = now;
      for (std::size_t n = 0; n < now.size(); ++n)
        EXPECT_TRUE(at::equal(now[n], first[n])) << n;
    }
  }
}

TEST_F(CudaProducts, RefuseWhatIsNoProduct) {
  const at::Tensor a = random({4, 8}, at::kBFloat16).cuda(),
                   b = random({9, 4}, at::kBFloat16).cuda();
  EXPECT_THROW(cuda::product(a, b), InternalError);
  EXPECT_THROW(cuda::product(a, b.slice(0, 0, 8).to(at::kHalf)), InternalError);
  at::Tensor out = at::empty({4, 5}, a.options());
  EXPECT_THROW(cuda::product_into(out, a, b.slice(0, 0, 8)), InternalError);
}

}  // namespace
}  // namespace sluice
