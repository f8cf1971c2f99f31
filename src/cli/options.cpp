#include "sluice/cli/options.h"

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/cost/known_models.h"

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
  app.add_option_function<std::string>(
         "--model", [this](const std::string& text) { model = named_model(text); },
         fmt::format("price each slice by its FLOPs in this model, and without {} also F, I and W "
                     "(F of a mean stage takes 1): {}, or {}",
                     times_flag, join(known_model_names(), ", "), kModelFiles))
      ->type_name("NAME|FILE");
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
  add_number(app, "--update-time", update_time, 0, 1e12,
             "time of one stage's UPDATE on the device that owns the stage (default 0)");
}

void PricingFlags::check() const {
  const std::string other = times_given           ? times_flag
                            : model               ? "--model"
                            : comm > 0            ? "--comm"
                            : !contention.empty() ? "--contention"
                            : reduce_time > 0     ? "--reduce-time"
                            : update_time > 0     ? "--update-time"
                                                  : "";
  if (!costs_file.empty() && !other.empty())
    throw user_error(
        "--costs '{}' and {} are both given: a costs file already says what {} says; leave "
        "one out",
        costs_file, other, other);
}

void SliceFlags::add(CLI::App& app, const std::string& help) {
  option_ = add_int(app, "--slices", slices, 1, kMaxSlices, help);
  tokens_option_ = add_int(app, "--tokens", tokens, 1, 1 << 30,
                           "tokens of a microbatch's sequence (default: what the file in --model "
                           "says, else 4096)");
  sizes_option_ =
      app.add_option_function<std::string>(
             "--slice-sizes", [this](const std::string& text) { set_sizes(text); },
             "tokens of each slice, summing to --tokens; or even: as many tokens in each; or "
             "balanced: as much work in each, by --model or by a profile in --costs (default: "
             "even; of compare with --model: balanced)")
          ->type_name("A,B,..|even|balanced");
  add_int(app, "--slice-multiple", multiple, 1, 1 << 30,
          "balanced slices begin at multiples of N tokens (default 128, or the power of two that "
          "is at most an eighth of a mean slice); halved where a slice would be empty");
}

void SliceFlags::set_sizes(const std::string& text) {
  balanced = text == "balanced";
  if (balanced || text == "even") return;
  for (const std::string_view part : split(text, ',')) {
    const auto value = parse_int(trim(part));
    if (!value || *value < 1)
      throw user_error(
          "--slice-sizes is '{}': '{}' is not a number of tokens; write numbers joined by commas, "
          "even or balanced",
          text, part);
    sizes.push_back(*value);
  }
}

void SliceFlags::take_tokens(const PricingFlags& pricing) {
  if (tokens_option_->count() == 0 && pricing.model) tokens = pricing.model->tokens;
}

void SliceFlags::check() {
  if (slices > tokens)
    throw user_error("--slices is {}: a sequence of {} tokens has at most {}", slices, tokens,
                     tokens);
  if (balanced && slices < 2)
    throw user_error("--slice-sizes is 'balanced': --slices is {}; cut sequences with --slices 4",
                     slices);
  check_needs(multiple > 0, "--slice-multiple", balanced, "--slice-sizes balanced");
  if (multiple > tokens)
    throw user_error("--slice-multiple is {}: a sequence has {} tokens; use a smaller multiple",
                     multiple, tokens);
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

}  // namespace sluice::cli
