#include "sluice/plan/flexsp/length_distributions.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sluice/base/counter_random.h"
#include "sluice/base/error.h"

namespace sluice::flexsp {
namespace {

// Lengths at the quantiles 0, 0.005, ... 0.995: the smallest length that so large a share of
// 1,000,000 articles does not exceed.
constexpr std::int32_t kWikipedia[] = {
    1,    31,   39,   44,   48,   52,   56,    59,   62,   65,   67,   70,   72,   74,   76,   78,
    80,   82,   84,   86,   87,   89,   90,    92,   93,   95,   96,   98,   99,   101,  103,  105,
    106,  108,  110,  112,  113,  115,  117,   119,  122,  124,  126,  129,  131,  134,  136,  139,
    141,  143,  146,  148,  151,  153,  155,   158,  160,  163,  165,  168,  171,  174,  177,  180,
    183,  187,  190,  194,  198,  202,  205,   209,  213,  216,  220,  224,  228,  231,  235,  239,
    243,  247,  251,  255,  260,  265,  269,   274,  279,  284,  290,  295,  300,  305,  310,  316,
    322,  328,  334,  340,  347,  353,  359,   366,  372,  378,  385,  391,  398,  404,  411,  417,
    423,  428,  434,  440,  446,  452,  459,   465,  472,  479,  487,  495,  502,  510,  518,  526,
    535,  545,  556,  567,  577,  589,  601,   614,  628,  642,  656,  670,  685,  700,  716,  733,
    749,  765,  783,  802,  821,  841,  862,   883,  904,  923,  939,  960,  984,  1008, 1035, 1063,
    1092, 1121, 1152, 1184, 1218, 1255, 1292,  1331, 1373, 1418, 1464, 1511, 1562, 1613, 1670, 1731,
    1796, 1866, 1941, 2023, 2112, 2211, 2319,  2438, 2565, 2705, 2862, 3036, 3235, 3459, 3720, 4022,
    4392, 4849, 5390, 6111, 7087, 8536, 10919, 15986};
static_assert(std::size(kWikipedia) == 200);
struct Quantile {
  double share;
  std::int32_t length;
};
constexpr Quantile kWikipediaTail[] = {
    {0.995, 15986},   {0.996, 18168},    {0.997, 21178},    {0.998, 26511},    {0.999, 37353},
    {0.9992, 41801},  {0.9994, 48258},   {0.9995, 51510},   {0.9996, 56953},   {0.9998, 75413},
    {0.9999, 101537}, {0.99995, 129653}, {0.99998, 193461}, {0.99999, 230941}, {1, 1823777}};

// Exponentials and logarithms of the C library differ in their last bit from one machine to the
// next, and an addition of a product from one compiler to the next. So both are made of geometric
// means: products and square roots, which IEEE 754 rounds in one way.
constexpr int kBits = 40;
constexpr std::int64_t kOne = std::int64_t{1} << kBits;

// low^(1-share) high^share, where the share is counted in kOne.
double geometric(double low, double high, std::int64_t share) {
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const double middle = std::sqrt(low * high);
    ((share >> bit) & 1 ? low : high) = middle;
  }
  return low;
}

// 2^x.
double power_of_two(double x) {
  const auto fixed = static_cast<std::int64_t>(std::floor(x * static_cast<double>(kOne)));
  return std::ldexp(geometric(1, 2, fixed & (kOne - 1)), static_cast<int>(fixed >> kBits));
}

// REQUIRES: x > 0.
double log2_of(double x) {
  int exponent = 0;
  const double part = std::frexp(x, &exponent);  // 0.5 to 1
  double low = 0.5, high = 1;
  std::int64_t share = 0;
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const double middle = std::sqrt(low * high);
    if (part >= middle) share |= std::int64_t{1} << bit;
    (part >= middle ? low : high) = middle;
  }
  return static_cast<double>((exponent - 1) * kOne + share) / static_cast<double>(kOne);
}

class Draws {
 public:
  // Streams of neighbouring seeds are far apart, although bits depend on seed plus counter alone.
  explicit Draws(std::uint64_t seed) : seed_(mix(seed)) {}

  std::uint64_t bits() { return random_bits(seed_, next_++); }
  std::uint64_t bits53() { return bits() >> 11; }
  // Above 0, at most 1.
  double uniform() { return static_cast<double>(bits53() + 1) * 0x1p-53; }
  // Marsaglia's polar method, on a grid of whole numbers.
  double normal() {
    for (;;) {
      const std::uint64_t both = bits();
      const std::int64_t u = static_cast<std::int32_t>(both >> 32);
      const std::int64_t v = static_cast<std::int32_t>(both & 0xffffffff);
      const auto square = static_cast<std::uint64_t>(u * u) + static_cast<std::uint64_t>(v * v);
      if (square == 0 || square >= std::uint64_t{1} << 62) continue;
      const double s = static_cast<double>(square) * 0x1p-62;
      constexpr double kTwoLn2 = 1.3862943611198906;
      return static_cast<double>(u) * 0x1p-31 * std::sqrt(-log2_of(s) * kTwoLn2 / s);
    }
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

// Between two quantiles, the logarithm of the length grows evenly.
double wikipedia(std::uint64_t bits53) {
  const std::uint64_t place = bits53 * (std::size(kWikipedia));
  const auto number = static_cast<std::size_t>(place >> 53);
  if (number + 1 < std::size(kWikipedia)) {
    constexpr std::uint64_t kBelow = (std::uint64_t{1} << 53) - 1;
    return geometric(kWikipedia[number], kWikipedia[number + 1],
                     static_cast<std::int64_t>((place & kBelow) >> (53 - kBits)));
  }
  const double share = static_cast<double>(bits53) * 0x1p-53;
  const Quantile* above = std::upper_bound(
      std::begin(kWikipediaTail) + 1, std::end(kWikipediaTail) - 1, share,
      [](double value, const Quantile& quantile) { return value < quantile.share; });
  const Quantile& below = *(above - 1);
  const double part = std::max(0.0, (share - below.share) / (above->share - below.share));
  return geometric(below.length, above->length,
                   std::min(kOne - 1, static_cast<std::int64_t>(part * static_cast<double>(kOne))));
}

struct Mixture {
  double heavy;   // share of the Pareto part
  double median;  // of the log-normal part
  double sigma;   // of it, for powers of two
  double index;   // of the Pareto part
};
constexpr double kLog2E = 1.4426950408889634;
constexpr Mixture kCommonCrawlLike = {0.03, 992.2747156050258, 1.25 * kLog2E, 0.9};
constexpr Mixture kGithubLike = {0.05, 665.1416330443618, 1.4 * kLog2E, 0.75};

double drawn(const Mixture& mixture, Draws& draws) {
  if (draws.uniform() <= mixture.heavy)
    return 8192 * power_of_two(-log2_of(draws.uniform()) / mixture.index);
  return mixture.median * power_of_two(mixture.sigma * draws.normal());
}

double drawn(LengthDistribution distribution, Draws& draws) {
  switch (distribution) {
    case LengthDistribution::wikipedia: return wikipedia(draws.bits53());
    case LengthDistribution::commoncrawl_like: return drawn(kCommonCrawlLike, draws);
    case LengthDistribution::github_like: return drawn(kGithubLike, draws);
  }
  return 1;
}

}  // namespace

DrawnLengths draw_lengths(LengthDistribution distribution, std::int64_t count, std::uint64_t seed,
                          std::int64_t longest) {
  Draws draws(seed);
  DrawnLengths out;
  const std::int64_t most = 10'000 + 1'000 * count;
  for (std::int64_t n = 0; std::ssize(out.lengths) < count; ++n) {
    if (n == most)
      throw user_error(
          "`max_length` is {}: of {} draws from {} only {} were as short; raise it, or ask for "
          "fewer",
          longest, most, distribution, out.lengths.size());
    // Far beyond any limit it is not even a whole number of 64 bits.
    const double length = std::floor(drawn(distribution, draws) + 0.5);
    if (length > static_cast<double>(longest))
      ++out.dropped;
    else
      out.lengths.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(length)));
  }
  return out;
}

}  // namespace sluice::flexsp
