#include "sluice/cli/batch_lengths.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/base/text.h"
#include "sluice/data/indexed.h"
#include "sluice/plan/flexsp/length_distributions.h"
#include "sluice/run/batch_plan.h"

namespace sluice::cli {
namespace {

using flexsp::LengthDistribution;

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::int64_t kCount = 512;

bool is_there(const std::string& path) {
  std::error_code ignored;
  return path == "-" || std::filesystem::exists(path, ignored);
}

void check_count(const std::string& file, std::int64_t count) {
  if (count > kMostSequences)
    throw bad_data("'{}' has more than {} sequences: give --count for the first ones", file,
                   kMostSequences);
}

GivenLengths of_text(const LengthsRequest& request) {
  const std::string& file = request.from;
  const std::string text = [&] {
    try {
      return read_text(file, kMostBytes);
    } catch (const UserError& error) {
      // A file that is there and is no text is bad data.
      if (error.code() != ExitCode::usage) throw;
      throw UserError(error.what(), ExitCode::bad_data);
    }
  }();
  GivenLengths given{.source = file, .from_file = true};
  std::string_view rest = text;
  for (std::int64_t line = 1; !rest.empty(); ++line) {
    if (request.count > 0 && std::ssize(given.lengths) == request.count) break;
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view word = trim(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto length = parse_int(word);
    if (!length || *length < 1 || *length > kMostTokens)
      throw bad_data(
          "'{}' line {}: {} is no length: needs a whole number from 1 to {}, one per line", file,
          line, json_quote(word.substr(0, 40)), kMostTokens);
    given.lengths.push_back(*length);
    given.places.push_back(fmt::format("line {}", line));
    check_count(file, std::ssize(given.lengths));
  }
  if (given.lengths.empty())
    throw bad_data("'{}' is empty: needs the length of a sequence on each line", file);
  return given;
}

GivenLengths of_index(const LengthsRequest& request) {
  const std::string& file = request.from;
  const auto idx = open_file(file);
  const std::string bin = file.substr(0, file.size() - 3) + "bin";
  // The lengths are in the index; it is only proved against the tokens where those are here.
  const std::int64_t bytes =
      is_there(bin) ? open_file(bin)->size() : std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> starts = read_token_index(*idx, bytes).document_starts;
  GivenLengths given{.source = file, .from_file = true};
  for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
    if (request.count > 0 && std::ssize(given.lengths) == request.count) break;
    const std::int64_t length = starts[d + 1] - starts[d];
    if (length == 0) {
      ++given.empty;
      continue;
    }
    if (length > kMostTokens)
      throw bad_data("'{}' document {}: it has {} tokens: at most {} make a sequence", file, d,
                     length, kMostTokens);
    given.lengths.push_back(length);
    given.places.push_back(fmt::format("document {}", d));
    check_count(file, std::ssize(given.lengths));
  }
  if (given.lengths.empty()) throw bad_data("'{}' has no document with a token", file);
  return given;
}

}  // namespace

GivenLengths given_lengths(const LengthsRequest& request) {
  if (is_there(request.from))
    return request.from.ends_with(".idx") ? of_index(request) : of_text(request);
  const auto distribution = named<LengthDistribution>(request.from);
  if (!distribution) {
    std::vector<std::string> known;
    for (const std::string_view name : names_of(LengthDistribution{}))
      known.emplace_back(name);
    const std::string nearest = nearest_name(request.from, known);
    throw user_error(
        "--lengths is '{}'{}; needs a file, or one of {}", request.from,
        nearest.empty() ? ": no such file" : fmt::format(": did you mean '{}'?", nearest),
        join(known, ", "));
  }
  flexsp::DrawnLengths drawn = flexsp::draw_lengths(
      *distribution, request.count > 0 ? request.count : kCount, request.seed, request.longest);
  return {.source = request.from,
          .from_file = false,
          .lengths = std::move(drawn.lengths),
          .places = {},
          .dropped = drawn.dropped,
          .empty = 0};
}

FittedLengths fitted_lengths(const GivenLengths& given, const LengthLimits& limits) {
  const std::int64_t room = limits.capacity_tokens * limits.largest_degree;
  const std::int64_t fits = room / limits.pad * limits.pad;
  if (fits == 0)
    throw user_error(
        "--pad is {}, and the largest group holds {}: pad to less, or give devices "
        "more memory",
        limits.pad, counted(room, "token"));
  const std::int64_t most = std::min(limits.longest, fits);
  const auto too_long = [&](std::int64_t length) { return length > most; };
  if (const auto first = std::find_if(given.lengths.begin(), given.lengths.end(), too_long);
      first != given.lengths.end() && limits.overlong == Overlong::error) {
    const auto n = first - given.lengths.begin();
    const std::string why =
        *first > limits.longest
            ? fmt::format("and --max-length is {}: raise it", limits.longest)
            : fmt::format(
                  "padded to {}, and the largest group holds {} ({} x {} tokens): give "
                  "devices more memory, or larger groups",
                  padded_to(*first, limits.pad), room, counted(limits.largest_degree, "device"),
                  limits.capacity_tokens);
    if (!given.from_file)
      throw user_error("sequence {} from {} has {}, {}; or give --max-length {}", n, given.source,
                       counted(*first, "token"), why, fits);
    const auto count = std::count_if(given.lengths.begin(), given.lengths.end(), too_long);
    throw bad_data(
        "'{}' {}: sequence {} has {}, {}; --overlong drop would leave out {} of {}, and truncate "
        "would cut to {}",
        given.source, given.places[static_cast<std::size_t>(n)], n, counted(*first, "token"), why,
        count, counted(std::ssize(given.lengths), "sequence"), counted(most, "token"));
  }
  FittedLengths out;
  out.dropped = given.dropped;
  for (std::int64_t length : given.lengths) {
    if (too_long(length)) {
      if (limits.overlong == Overlong::drop) {
        ++out.dropped;
        continue;
      }
      ++out.truncated;
      length = most;
    }
    out.tokens += length;
    out.padded.push_back(padded_to(length, limits.pad));
  }
  if (out.padded.empty())
    throw bad_data("'{}' has no sequence of at most {}: nothing is left", given.source,
                   counted(most, "token"));
  return out;
}

}  // namespace sluice::cli
