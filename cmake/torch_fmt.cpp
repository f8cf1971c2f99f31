// The library to torch's headers of fmt, which the wheel lacks. (Header-only, every source that
// formats anything would take three seconds longer to compile.)
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// The functions that the headers declare as templates and define for their library only.
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

}  // namespace detail
FMT_END_NAMESPACE
