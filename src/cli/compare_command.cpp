// sluice compare [NAME...]: schedules side by side on the same model.
#include <algorithm>

#include "sluice/base/say.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cli/report.h"
#include "sluice/report/comparison.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::vector<std::string> names;
  ComparisonRequest request;
  SliceFlags slices;
  PricingFlags pricing;  // times of a device
  OutputFlags output;
};

void read_profile(Flags& flags) {
  if (flags.pricing.costs_file.empty()) return;
  flags.request.profile =
      parse_file(flags.pricing.costs_file, kMaxCostsBytes, [&](const std::string& text) {
        Costs costs = stage_costs_from_json(text);
        check_measured_length(costs, flags.slices.stated_tokens());
        return costs;
      });
}

// Slices that are not given: four, balanced where there is a model; or those of the profile.
void cut(Flags& flags) {
  SliceFlags& slices = flags.slices;
  slices.take_tokens(flags.pricing);
  const std::optional<Costs>& profile = flags.request.profile;
  if (!slices.given())
    slices.slices =
        profile && profile->num_slices() > 1 ? profile->num_slices() : std::min(4, slices.tokens);
  const std::optional<NamedModel>& model = flags.pricing.model;
  if (model && !model->shape.encoder() && !slices.sizes_given())
    slices.balanced = slices.slices > 1;
  slices.check();
  slices.balance(flags.pricing, slices.stated_tokens());
  flags.pricing.count_model(slices.tokens);
}

void run(Flags& flags) {
  ComparisonRequest& request = flags.request;
  for (const auto& [flag, value] :
       {std::pair{"--devices", request.devices}, std::pair{"--microbatches", request.microbatches}})
    if (value == 0)
      throw user_error("{} is missing: sluice compare --devices 8 --microbatches 16", flag);
  for (const std::string& name : flags.names) {
    const Generator& generator = find_generator(name);
    if (generator.knobs.block)
      throw user_error("'{}' cannot be compared: it has no schedule of its own", name);
    const auto& found = request.generators;
    if (std::find(found.begin(), found.end(), &generator) == found.end())
      request.generators.push_back(&generator);
  }
  const Format format = flags.output.format("text,svg,json");
  flags.pricing.check();
  if (!flags.pricing.contention.empty())
    check_contention(flags.pricing.contention, request.devices, "--contention");
  read_profile(flags);
  cut(flags);
  request.slicing = flags.slices;
  request.pricing = flags.pricing;
  Comparison comparison = compare_schedules(request);
  for (auto& [label, reason] : comparison.left_out)
    reason = as_flags(reason);
  if (format == Format::svg && comparison.rows.empty() && !comparison.windows.empty())
    throw user_error(
        "--format is svg: it draws makespans against memory, and {} goes on from one update to the "
        "next; use text or json",
        comparison.windows.front().label);
  if (comparison.rows.empty() && comparison.windows.empty()) {
    // The first asks least of all.
    const auto& [label, reason] = comparison.left_out.front();
    throw user_error("nothing to compare: {}: {}", label, reason);
  }
  flags.output.write(format == Format::json  ? comparison_json(request, comparison)
                     : format == Format::svg ? comparison_svg(request, comparison)
                                             : comparison_text(request, comparison));
  if (request.profile)
    say("sluice: {}\n", measured_on_note(request.pricing.costs_file, *request.profile));
}

}  // namespace

void add_compare(CLI::App& app, ExitCode&) {
  auto flags = std::make_shared<Flags>();
  ComparisonRequest& request = flags->request;
  CLI::App* command = app.add_subcommand("compare", "schedules side by side on the same model");
  command->add_option("names", flags->names, "schedules to compare (default: all)")
      ->type_name("NAME");
  add_size(*command, request.devices, 1 << 16, request.microbatches, 1 << 20);
  add_int(*command, "--stages-per-device", request.stages_per_device, 1, 1024,
          "stages per device of the interleaved schedules (default 2)");
  // Before its first backward a device has seen the whole of a microbatch: nothing needs less.
  add_number(*command, "--device-memory-cap,--memory-cap", request.memory_cap, 1, 1e9,
             "leave out what needs more, in microbatches of a whole device; zb and adaptive-v "
             "search under it");
  flags->slices.add(*command, "cut sequences into N slices where a schedule can (default 4)");
  flags->pricing.times_flag = "--device-times";
  flags->pricing.add(*command,
                     "times of a device's F,I,W on a whole microbatch (default 1,1,1; B = I + W)");
  flags->output.add(*command, "text (default), svg, json");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
