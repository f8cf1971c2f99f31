#include "cli/options.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace sluice::cli {
CLI::Option* add_int(CLI::App& app, const std::string& flag, int& target, int least, int most,
                     const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&target, flag, least, most](const std::string& text) {
            const auto value = parse_int(text);
            if (!value || *value < least || *value > most)
              throw user_error("{} is '{}': needs a whole number from {} to {}", flag, text, least,
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
         [&target, flag, least, most](const std::string& text) {
           const auto value = parse_double(text);
           if (!value || *value < least || *value > most)
             throw user_error("{} is '{}': needs a number from {} to {}", flag, text, number(least),
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

void check_of(bool given, const std::string& flag, bool there, std::string_view of) {
  if (given && !there)
    throw user_error("{} is given: it is of {}; add that or leave it out", flag, of);
}

std::vector<double> parse_numbers(std::string_view flag, std::string_view text) {
  std::vector<double> out;
  for (const std::string_view part : split(text, ',')) {
    const auto value = parse_double(trim(part));
    if (!value)
      throw user_error("{} is '{}': '{}' is no number; write numbers joined by commas", flag, text,
                       part);
    out.push_back(*value);
  }
  return out;
}

void PricingFlags::add(CLI::App& app, bool with_costs, const std::string& times_help) {
  app.add_option_function<std::string>(
         "--times",
         [this](const std::string& text) {
           const std::vector<double> values = parse_numbers("--times", text);
           if (values.size() != 3)
             throw user_error("--times is '{}': needs three numbers, F,I,W", text);
           for (const double value : values)
             if (value < 0 || value > 1e12)
               throw user_error("--times is '{}': a time is from 0 to 1e12", text);
           if (values[0] + values[1] + values[2] <= 0)
             throw user_error("--times is '{}': at least one op must take time", text);
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
         "speed of a busy device with 1, 2, .. all devices busy; all is 1 (default: always 1)")
      ->type_name("A,..,1");
  if (!with_costs) return;
  add_number(app, "--reduce-time", reduce_time, 0, 1e12,
             "time of one stage's REDUCE_GRAD beside the compute (default 0)");
  add_text(app, "--costs", costs_file, "costs file (JSON: seconds and bytes), instead of --times")
      ->type_name("FILE");
}

void PricingFlags::check() const {
  if (!costs_file.empty() && (times_given || comm > 0 || reduce_time > 0 || !contention.empty()))
    throw user_error("--costs is '{}' beside {}: the file holds both; give one of them", costs_file,
                     times_given           ? "--times"
                     : comm > 0            ? "--comm"
                     : !contention.empty() ? "--contention"
                                           : "--reduce-time");
}

Costs PricingFlags::costs(const Schedule& schedule) const {
  if (!costs_file.empty())
    return parse_file(costs_file, kMaxCostsBytes,
                      [&](const std::string& text) { return costs_from_json(text, schedule); });
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
  add_int(app, "--tokens", tokens, 1, 1 << 30, "tokens of a microbatch's sequence (default 4096)");
  app.add_option_function<std::string>(
         "--slice-sizes",
         [this](const std::string& text) {
           for (const std::string_view part : split(text, ',')) {
             const auto value = parse_int(trim(part));
             if (!value || *value < 1)
               throw user_error("--slice-sizes is '{}': '{}' is no number of tokens", text, part);
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
    throw user_error("--slice-sizes names {} slices, and --slices is {}", sizes.size(), slices);
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
