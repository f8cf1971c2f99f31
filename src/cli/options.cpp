#include "cli/options.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "plan/redeal.h"

namespace sluice::cli {
namespace {

// "-d,--devices" is called --devices.
std::string called(const std::string& names) {
  const std::size_t start = names.starts_with("--") ? 0 : names.find(",--") + 1;
  return names.substr(start, names.find(',', start) - start);
}

}  // namespace

CLI::Option* add_int(CLI::App& app, const std::string& flag, int& target, int least, int most,
                     const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&target, name = called(flag), least, most](const std::string& text) {
            const auto value = parse_int(text);
            if (!value || *value < least || *value > most)
              throw user_error("{} is '{}': needs a whole number from {} to {}", name, text, least,
                               most);
            target = static_cast<int>(*value);
          },
          help)
      ->type_name("N");
}

void add_number(CLI::App& app, const std::string& flag, double& target, double least, double most,
                const std::string& help) {
  app.add_option_function<std::string>(
         flag,
         [&target, name = called(flag), least, most](const std::string& text) {
           const auto value = parse_double(text);
           if (!value || *value < least || *value > most)
             throw user_error("{} is '{}': needs a number from {} to {}", name, text, number(least),
                              number(most));
           target = *value;
         },
         help)
      ->type_name("X");
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& target,
                      const std::string& help) {
  return app.add_option_function<std::string>(
      flag,
      [&target, flag](const std::string& text) {
        if (text.empty()) throw user_error("{} is '': give it a value or leave it out", flag);
        target = text;
      },
      help);
}

void add_size(CLI::App& app, int& devices, int most_devices, int& microbatches,
              int most_microbatches) {
  add_int(app, "-d,--devices", devices, 1, most_devices, "devices of the pipeline, p");
  add_int(app, "-m,--microbatches", microbatches, 1, most_microbatches, "microbatches, m");
}

void check_needs(bool given, std::string_view flag, bool there, std::string_view needed) {
  if (given && !there) throw user_error("{} needs {}", flag, needed);
}

std::vector<double> parse_numbers(std::string_view flag, std::string_view text) {
  std::vector<double> out;
  for (const std::string_view part : split(text, ',')) {
    const auto value = parse_double(trim(part));
    if (!value)
      throw user_error("{} is '{}': '{}' is not a number; write numbers joined by commas", flag,
                       text, part);
    out.push_back(*value);
  }
  return out;
}

void PricingFlags::add(CLI::App& app, const std::string& times_help) {
  app.add_option_function<std::string>(
         times_flag == "--times" ? times_flag : times_flag + ",--times",
         [this](const std::string& text) {
           const std::vector<double> values = parse_numbers(times_flag, text);
           if (values.size() != 3)
             throw user_error("{} is '{}': needs three numbers, F,I,W", times_flag, text);
           for (const double value : values)
             if (value < 0 || value > 1e12)
               throw user_error("{} is '{}': a time is from 0 to 1e12", times_flag, text);
           if (values[0] + values[1] + values[2] <= 0)
             throw user_error("{} is '{}': at least one op must take time", times_flag, text);
           times = {values[0], values[1], values[2]};
           times_given = true;
         },
         times_help)
      ->type_name("F,I,W");
  add_number(app, "--comm", comm, 0, 1e12, "latency of a message between devices (default 0)");
  add_number(app, "--keep-after-i", keep_after_i, 0, 1,
             "share of a stage-activation kept between I and W (default 1)");
  app.add_option_function<std::string>(
         "--contention",
         [this](const std::string& text) { contention = parse_numbers("--contention", text); },
         "relative speed of a busy device with 1, 2, ... all devices busy; ends with 1 (default: "
         "always 1)")
      ->type_name("A,..,1");
  add_text(app, "--costs", costs_file,
           fmt::format("costs file (JSON: seconds and bytes), instead of {}", times_flag))
      ->type_name("FILE");
}

void PricingFlags::add_reduce_time(CLI::App& app) {
  add_number(app, "--reduce-time", reduce_time, 0, 1e12,
             "time of one stage's REDUCE_GRAD beside the compute (default 0)");
}

void PricingFlags::check() const {
  const std::string other = times_given           ? times_flag
                            : comm > 0            ? "--comm"
                            : !contention.empty() ? "--contention"
                            : reduce_time > 0     ? "--reduce-time"
                                                  : "";
  if (!costs_file.empty() && !other.empty())
    throw user_error(
        "--costs '{}' and {} are both given: a costs file already says what {} says; leave "
        "one out",
        costs_file, other, other);
}

std::string measured_on_note(const std::string& file, const Costs& costs) {
  return costs.measured_on
             ? fmt::format("{}: measured on {}", file, costs.measured_on->text())
             : fmt::format("{}: has no measured_on, so it may be of another model", file);
}

void check_measured_length(const Costs& costs, std::int64_t tokens) {
  if (!costs.measured_on || tokens == 0) return;
  if (const std::int64_t length = costs.measured_on->sequence_length; length != tokens)
    throw user_error(
        "measured with sequences of {} tokens (measured_on.sequence_length), and the schedule's "
        "have {}: measure again (sluice profile) or correct --tokens",
        length, tokens);
}

Costs PricingFlags::costs(const Schedule& schedule, std::int64_t tokens) const {
  if (!costs_file.empty())
    return parse_file(costs_file, kMaxCostsBytes, [&](const std::string& text) {
      Costs costs = redeal ? sluice::redeal(stage_costs_from_json(text), schedule)
                           : costs_from_json(text, schedule);
      const std::vector<std::int64_t>& sizes = schedule.slice_sizes;
      check_measured_length(costs, std::accumulate(sizes.begin(), sizes.end(),
                                                   sizes.empty() ? tokens : std::int64_t{0}));
      return costs;
    });
  if (reduce_time > 0 && !schedule.has(OpKind::ReduceGrad))
    throw user_error(
        "--reduce-time is {}: {} has no REDUCE_GRAD; let sluice schedule --reduce add it or leave "
        "the flag out",
        number(reduce_time), schedule.name);
  Costs costs = unit_costs(schedule, times, comm, keep_after_i);
  if (!contention.empty()) check_contention(contention, schedule.num_devices(), "--contention");
  costs.contention = contention;
  if (reduce_time > 0) {
    costs.reduce.assign(static_cast<std::size_t>(schedule.num_stages()), reduce_time);
    costs.data_link.bytes_per_time = 1;
  }
  return costs;
}

void SliceFlags::add(CLI::App& app, const std::string& help) {
  option_ = add_int(app, "--slices", slices, 1, kMaxSlices, help);
  tokens_option_ = add_int(app, "--tokens", tokens, 1, 1 << 30,
                           "tokens of a microbatch's sequence (default 4096)");
  app.add_option_function<std::string>(
         "--slice-sizes",
         [this](const std::string& text) {
           for (const std::string_view part : split(text, ',')) {
             const auto value = parse_int(trim(part));
             if (!value || *value < 1)
               throw user_error("--slice-sizes is '{}': '{}' is not a number of tokens", text,
                                part);
             sizes.push_back(*value);
           }
         },
         "tokens of each slice, summing to --tokens (default: equal slices)")
      ->type_name("A,B,..");
}

void SliceFlags::check() {
  if (slices > tokens)
    throw user_error("--slices is {}: a sequence of {} tokens has at most {}", slices, tokens,
                     tokens);
  if (sizes.empty()) return;
  if (option_->count() > 0 && slices != static_cast<int>(sizes.size()))
    throw user_error("--slice-sizes has {} slices, but --slices is {}: leave --slices out",
                     sizes.size(), slices);
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes)
    if (size > tokens || (sum += size) > tokens) break;
  if (sum != tokens)
    throw user_error("--slice-sizes must sum to --tokens {}: change one of them", tokens);
  slices = static_cast<int>(sizes.size());
}

std::string read_file(const std::string& path, std::size_t most_bytes) {
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  const bool standard_input = path == "-";
  const File file(standard_input ? stdin : std::fopen(path.c_str(), "rb"),
                  standard_input ? [](std::FILE*) { return 0; } : std::fclose);
  if (!file) throw user_error("cannot read '{}': {}", path, std::strerror(errno));
  const auto check_size = [&](std::size_t bytes) {
    if (bytes > most_bytes)
      throw user_error("'{}' is too large: at most {} MiB are read from such a file", path,
                       most_bytes >> 20);
  };
  struct stat status = {};
  if (::fstat(::fileno(file.get()), &status) == 0 && S_ISREG(status.st_mode))
    check_size(static_cast<std::size_t>(status.st_size));
  // A pipe or a device says nothing of its size: it is counted as it comes.
  std::string text;
  char block[1 << 16];
  for (;;) {
    const std::size_t got = std::fread(block, 1, sizeof block, file.get());
    if (std::memchr(block, 0, got))
      throw user_error("'{}' is not a text file: it holds a NUL byte", path);
    text.append(block, got);
    check_size(text.size());
    if (got < sizeof block) break;
  }
  if (std::ferror(file.get())) throw user_error("cannot read '{}': {}", path, std::strerror(errno));
  return text;
}

}  // namespace sluice::cli
