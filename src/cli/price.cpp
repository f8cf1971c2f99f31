#include "sluice/cli/price.h"

#include <fmt/ranges.h>

#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/plan/redeal.h"

namespace sluice::cli {
namespace {

// A timeline holds every op and message; beyond this it is gigabytes.
constexpr std::size_t kMaxDrawnOps = 5'000'000;

}  // namespace

PricedSchedule price(PriceRequest request) {
  PricedSchedule priced;
  priced.schedule = std::move(request.schedule);
  priced.validation = validate(priced.schedule, {.max_buffers = request.buffers});
  if (!priced.validation.valid()) return priced;
  const std::size_t ops = priced.schedule.num_compute_ops();
  if (request.timeline && ops > kMaxDrawnOps)
    throw user_error(
        "{} ops are too many to draw or list: at most {}; use --format csv, --format json "
        "without --timeline, or compare",
        with_commas(std::to_string(ops)), with_commas(std::to_string(kMaxDrawnOps)));
  priced.seconds = !request.pricing.costs_file.empty();
  const Costs costs = request.pricing.costs(priced.schedule, request.tokens);
  if (priced.seconds) priced.note = measured_on_note(request.pricing.costs_file, costs);
  if (request.pricing.redeal)
    priced.note += fmt::format("\nsluice: layers of the stages: {}", fmt::join(costs.layers, ", "));
  priced.contention = costs.contention;
  if (request.pricing.model) priced.model = request.pricing.model->name;
  priced.times = request.pricing.times;
  priced.simulation =
      simulate(priced.schedule, costs,
               {.timeline = request.timeline, .keep_after_i = request.pricing.keep_after_i});
  priced.simulation->timeline.caption = caption(priced);
  return priced;
}

Schedule generate_with_profile(const Generator& generator, GeneratorOptions options,
                               const Costs& profile) {
  Schedule schedule = generate_schedule(generator, options);
  if (!generator.knobs.times) return schedule;
  // The first search was for the placement.
  const SearchTimes times = search_times(redeal(profile, schedule));
  options.stage_times = times.stages;
  options.comm = times.comm;
  return generate_schedule(generator, options);
}

ExitCode write_priced(const PricedSchedule& priced, Format format, bool timeline,
                      const OutputFlags& output) {
  if (priced.validation.valid() || format == Format::json)
    output.write(render(priced, format, timeline, output.to_standard_output()));
  if (!priced.note.empty()) say("sluice: {}\n", priced.note);
  if (priced.validation.valid()) return ExitCode::ok;
  if (format != Format::json)
    say("sluice: {} is not a valid schedule\n{}", priced.schedule.name,
        problem_lines(priced.validation));
  return ExitCode::invalid_schedule;
}

}  // namespace sluice::cli
