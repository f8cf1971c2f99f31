// What the pictures share: colours, words, units, scales and escaping. Everything a reader must
// recognise from one picture to the next is decided here once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/trace/timeline.h"

namespace sluice {

struct Rgb {
  std::uint8_t r = 0;
  std::uint8_t g = 0;
  std::uint8_t b = 0;

  friend bool operator==(const Rgb&, const Rgb&) = default;
};

inline constexpr Rgb kWhite = {255, 255, 255};
inline constexpr Rgb kInk = {23, 32, 46};         // text
inline constexpr Rgb kFaintInk = {91, 102, 117};  // secondary text
inline constexpr Rgb kRule = {223, 228, 234};     // axes, frames
inline constexpr Rgb kIdle = {233, 237, 242};     // behind the ops: a bubble is what shows
inline constexpr Rgb kMemory = {135, 120, 165};
inline constexpr std::string_view kFontFamily =
    "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif";

std::string hex(Rgb colour);              // "#1c2530"
Rgb mix(Rgb from, Rgb to, double share);  // share 0 gives `from`, 1 gives `to`
Rgb readable_on(Rgb background);          // kInk or white, whichever contrasts more
Rgb kind_colour(OpKind kind, int shade, int num_shades);

// "forward", "input gradient", ...
std::string_view kind_words(OpKind kind);

// A device runs several chunks of the model, or several pipes: each has its own shade.
int num_chunks(const Timeline& timeline);
int num_shades(const Timeline& timeline);
int shade_of(const Timeline& timeline, const Op& op);
// "chunk 1", "pipe 0", "chunk 1, pipe 0"; empty where there is only one shade.
std::string shade_words(const Timeline& timeline, int shade);

// The kinds that occur among the spans and reductions, in the order of the enum.
std::vector<OpKind> kinds_in(const Timeline& timeline);

// The shortest span that takes time at all, and the median of them; 1 where there is none.
double shortest_span(const Timeline& timeline);
double median_span(const Timeline& timeline);
std::size_t num_spans(const Timeline& timeline);
int max_microbatch(const Timeline& timeline);
double max_peak(const Timeline& timeline);
bool has_reductions(const Timeline& timeline);

// A group of ops that run as one: [first, last] among the spans of a device.
struct SpanGroup {
  std::size_t first = 0;
  std::size_t last = 0;
};
std::vector<SpanGroup> joined_groups(const DeviceTimeline& device);

// The share of the makespan in which a device is idle, as the eye sees it: before its first op and
// after its last, too. Where a timeline holds several runs, each has its own makespan.
double idle_share(const Timeline& timeline, std::size_t device);

// How to write a quantity: divide by `size`, append `name`.
struct Unit {
  double size = 1;
  std::string_view name;
};
Unit time_unit(const Timeline& timeline);    // s, ms, us, or nothing
Unit memory_unit(const Timeline& timeline);  // GiB, MiB, KiB, B, or nothing
// At most four significant digits.
std::string tidy(double value);
std::string with_unit(double value, const Unit& unit);
std::string percent(double share);

// The smallest of 1, 2, 5 x 10^n that is not below `least`.
double nice_step(double least);

// For element content and attribute values. Characters that XML cannot hold become '?'.
std::string escape_xml(std::string_view text);

}  // namespace sluice
