// Stands in for all of this folder that needs CUDA, in a build without it.
#include "sluice/base/error.h"
#include "sluice/cuda/device.h"
#include "sluice/cuda/functions.h"
#include "sluice/cuda/products.h"

namespace sluice::cuda {
namespace {

[[noreturn]] void absent() { throw InternalError("built without CUDA"); }

}  // namespace

std::string why_not() {
  return "this build has no CUDA: it takes nvcc and a torch with CUDA; build again where both are";
}
int num_devices() { return 0; }
std::string device_name(int) { absent(); }

struct Moment::State {};
Moment::Moment() { absent(); }
Moment::~Moment() = default;
Moment::Moment(Moment&&) noexcept = default;
Moment& Moment::operator=(Moment&&) noexcept = default;
void Moment::record() { absent(); }
void Moment::precede() const { absent(); }
void Moment::wait() const { absent(); }
double Moment::seconds_since(const Moment&) const { absent(); }

struct Partitions::State {};
Partitions::Partitions(int, int, int) { absent(); }
Partitions::~Partitions() = default;
int Partitions::count() const { absent(); }
int Partitions::sms() const { absent(); }

struct RankStream::State {};
RankStream::RankStream(int) { absent(); }
RankStream::RankStream(const Partitions&, int) { absent(); }
RankStream::~RankStream() = default;

void synchronize() { absent(); }
void use_on_this_stream(const at::Tensor&) { absent(); }
MemoryUse memory_use(int) { absent(); }
void reset_peak(int) { absent(); }

struct Products::State {};
Products::Products() { absent(); }
Products::~Products() = default;
void Products::compute(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, at::Tensor&) {
  absent();
}
Products::Tried Products::tried() const { absent(); }
Products& products() { absent(); }
at::Tensor product(const at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }
void product_into(at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }
void add_product(at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }

void draw_normal(at::Tensor&, const NormalPart&, std::uint64_t, double) { absent(); }
NormResult norm(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) { absent(); }
NormResult add_norm(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                    double, at::Tensor&) {
  absent();
}
NormGradient norm_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  absent();
}
at::Tensor activation(Activation, const at::Tensor&) { absent(); }
at::Tensor activation_backward(Activation, const at::Tensor&, const at::Tensor&) { absent(); }
void rotate(at::Tensor&, std::int64_t, std::int64_t, const at::Tensor&, const at::Tensor&) {
  absent();
}
at::Tensor join_heads(const HeadGradients&, const HeadGradients&, const at::Tensor&,
                      const at::Tensor&) {
  absent();
}
void add_keys(const at::Tensor&, const at::Tensor&, const std::vector<std::int64_t>&,
              std::vector<at::Tensor>&, std::vector<at::Tensor>&) {
  absent();
}
at::Tensor join_tokens(std::span<const at::Tensor>) { absent(); }
void merge_attention(at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }
void cross_entropy(at::Tensor&, const at::Tensor&, double, bool, at::Tensor&) { absent(); }
void add_rows(at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }
void update(const Update&) { absent(); }
void block_squares(const at::Tensor&, const std::vector<std::int64_t>&, at::Tensor&) { absent(); }

}  // namespace sluice::cuda
