// sluice schedule NAME: generate, prove, price, draw, export.
#include <algorithm>
#include <functional>
#include <optional>

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cli/report.h"
#include "sluice/plan/redeal.h"
#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/transforms/split_backward.h"
#include "sluice/schedule/transforms/torch_lowering.h"

namespace sluice::cli {
namespace {

constexpr const char* kFormats = "grid,svg,html,chrome,json,csv,torch-csv";

struct Flags {
  std::string name;
  CLI::App* command = nullptr;
  bool list = false;
  GeneratorOptions generator;
  int buffers = -1;
  bool timeline = false;
  bool lowered = false;
  bool reduce = false;
  std::string block_file;
  std::string backward;
  SliceFlags slices;
  PricingFlags pricing;
  OutputFlags output;
};

std::string list_text() {
  TextTable table({"name", "bubble", "peak stage-activations", "what it is"});
  for (int column = 1; column < 4; ++column)
    table.left_align(column);
  for (const Generator* generator : all_generators()) {
    std::string summary(generator->summary);
    if (!generator->aliases.empty()) summary += fmt::format(" [{}]", generator->aliases.front());
    table.add({std::string(generator->name), std::string(generator->bubble),
               std::string(generator->memory), summary});
  }
  return as_flags(table.text()) +
         "\np devices, r device number, m microbatches, v stages per device, k slices, N group "
         "size;\nF, I, W, B = I + W: times of one stage's op on a whole microbatch.\n";
}

// A search goes by the times of the costs file: by those of its stages.
void take_times(const Generator& generator, GeneratorOptions& options,
                const PricingFlags& pricing) {
  if (pricing.costs_file.empty() || !generator.knobs.times) return;
  options = parse_file(pricing.costs_file, kMaxCostsBytes, [&](const std::string& text) {
    const Costs costs = stage_costs_from_json(text, !pricing.redeal);
    if (pricing.redeal) return with_profile(generator, options, costs);
    const SearchTimes times = search_times(costs);
    options.stage_times = times.stages;
    options.comm = times.comm;
    return options;
  });
}

void run(Flags& flags, ExitCode& exit_code) {
  if (flags.list) {
    for (const CLI::Option* option : flags.command->get_options())
      if (const std::string name = option->get_name();
          option->count() > 0 && name != "--list" && name != "--out")
        throw user_error("--list prints every schedule and takes no flag but --out: leave {} out",
                         name);
    return flags.output.write(list_text());
  }
  if (flags.name.empty())
    throw user_error("schedule needs a name: sluice schedule --list shows all of them");
  const Generator& generator = find_generator(flags.name);
  for (const auto& [flag, value] : {std::pair{"--devices", flags.generator.devices},
                                    std::pair{"--microbatches", flags.generator.microbatches}})
    if (value == 0)
      throw user_error("{} is missing: sluice schedule {} --devices 4 --microbatches 8", flag,
                       generator.name);
  const Format format = flags.output.format(kFormats);
  check_needs(flags.timeline, "--timeline", format == Format::json, "--format json");
  check_needs(flags.lowered, "--lowered", !draws(format), "--format json, csv or torch-csv");
  check_needs(flags.pricing.redeal, "--redeal", !flags.pricing.costs_file.empty(), "--costs FILE");
  flags.slices.take_tokens(flags.pricing);
  flags.slices.check();
  flags.pricing.check();
  flags.slices.balance(flags.pricing, flags.slices.stated_tokens());
  flags.pricing.count_model(flags.slices.tokens);

  GeneratorOptions& options = flags.generator;
  options.slices = flags.slices.slices;
  options.slice_sizes = flags.slices.sizes;
  options.times = flags.pricing.times;
  options.comm = flags.pricing.comm;
  options.keep_after_i = flags.pricing.keep_after_i;
  if (flags.backward != "split" && flags.backward != "fused" && !flags.backward.empty())
    throw user_error("--backward is '{}': needs split or fused", flags.backward);
  options.asynchronous.fused = generator.knobs.windows && flags.backward == "fused";
  if (!flags.block_file.empty())
    options.block = {flags.block_file, read_text(flags.block_file, kMaxBlockBytes)};
  take_times(generator, options, flags.pricing);
  Schedule schedule = generate_schedule(generator, options);
  // An asynchronous schedule has its own way with each form.
  if (!generator.knobs.windows && flags.backward == "split") schedule = split_backward(schedule);
  if (!generator.knobs.windows && flags.backward == "fused") schedule = fuse_backward(schedule);
  if (flags.reduce) schedule = add_reductions(schedule);
  std::optional<AsynchronousOptions> settled;
  if (generator.settle) settled = generator.settle(options).asynchronous;
  PricedSchedule priced = price_schedule({.schedule = std::move(schedule),
                                          .pricing = flags.pricing,
                                          .tokens = flags.slices.stated_tokens(),
                                          .buffers = flags.buffers,
                                          .timeline = flags.timeline || draws(format),
                                          .asynchronous = settled});
  if (generator.block) priced.block = bound_of(generator.block(options), priced.schedule);
  priced.describe_block = generator.knobs.block;
  if (flags.lowered)
    priced.schedule = format == Format::torch_csv && priced.validation.valid()
                          ? lower_for_torch(priced.schedule)
                          : priced.validation.lowered;
  exit_code = write_priced(priced, format, flags.timeline, flags.output);
}

// A flag whose value is one of the first `count` names of an enumeration.
template <Named E>
void add_choice(CLI::App& app, const std::string& flag, std::size_t count,
                const std::function<void(E)>& set, const std::string& help) {
  const auto all = names_of(E{});
  const std::vector<std::string> names(all.begin(),
                                       all.begin() + static_cast<std::ptrdiff_t>(count));
  app.add_option_function<std::string>(
         flag,
         [flag, names, set](const std::string& text) {
           const auto found = std::find(names.begin(), names.end(), text);
           if (found == names.end())
             throw user_error("{} is '{}': needs one of {}", flag, text, join(names, ", "));
           set(static_cast<E>(found - names.begin()));
         },
         help)
      ->type_name(join(names, "|"));
}

// Of schedules that go on from one update to the next.
void add_asynchronous(CLI::App& app, GeneratorOptions& options) {
  AsynchronousOptions& a = options.asynchronous;
  add_int(app, "--windows", options.windows, 1, 1 << 26,
          "updates of the weights, each behind --microbatches (amdp, async-1f1b, pipedream, "
          "pipedream-2bw, xpipe; default 1)");
  add_choice<AmdpOrder>(
      app, "--order", names_of(AmdpOrder{}).size(), [&a](AmdpOrder order) { a.order = order; },
      "of amdp (default auto: the fastest for the times)");
  add_int(app, "--pipes", a.pipes, 1, 1 << 10,
          "pipes of --order frozen (default half the devices)");
  add_int(app, "--in-flight", a.in_flight, 1, 1 << 20,
          "microbatches that a pipe of --order frozen has under way (default 2)");
  add_int(app, "--border", a.border, 1, 2,
          "forwards that outer devices run ahead where blocks of order A or rounded-A meet "
          "(default 1)");
  add_int(app, "--update-slot", a.update_slot, 1, 1 << 26,
          "slot of a block before which amdp updates (default the latest that loses no gradient)");
  add_choice<WeightVersions>(
      app, "--weights", 2, [&a](WeightVersions weights) { a.weights = weights; },
      "a backward uses the newest weights, or those of its forward (default newest; pipedream: "
      "stash)");
  const auto add_bound = [&](const std::string& flag, std::optional<int>& bound,
                             const std::string& what) {
    app.add_option_function<std::string>(
           flag,
           [flag, &bound](const std::string& text) {
             const auto value = parse_int(text);
             if (!value || *value < 0 || *value > 1 << 20)
               throw user_error("{} is '{}': needs a whole number from 0 to {}", flag, text,
                                1 << 20);
             bound = static_cast<int>(*value);
           },
           what)
        ->type_name("N");
  };
  add_bound("--max-mismatch", a.max_mismatch,
            "fail if more than N updates come between a forward and its backward (default of amdp "
            "1, else any)");
  add_bound("--max-delay", a.max_delay,
            "fail if the weights of a forward lack more than N updates (default of amdp 1, else "
            "any)");
}

}  // namespace

void add_schedule(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("schedule", "generate a schedule; simulate, draw or export it");
  flags->command = command;
  command->add_option("name", flags->name,
                      "schedule name (--list shows all; PyTorch's names work)");
  command->add_flag("--list", flags->list, "every name with its bubble and memory formula");
  GeneratorOptions& options = flags->generator;
  add_size(*command, options.devices, 1 << 20, options.microbatches, 1 << 26);
  add_int(*command, "--stages-per-device", options.stages_per_device, 1, 1024,
          "stages per device, v (default 2 where more than one is needed)");
  add_int(*command, "--group-size", options.group_size, 1, 1 << 26,
          "microbatches per group (interleaved-1f1b, interleaved-zb, gis)");
  flags->slices.add(*command, "cut each microbatch into N slices (default 1)");
  command
      ->add_option_function<std::string>(
          "--memory-cap",
          [flags](const std::string& text) {
            const std::vector<double> caps = parse_numbers("--memory-cap", text);
            if (*std::min_element(caps.begin(), caps.end()) <= 0)
              throw user_error("--memory-cap is '{}': needs a positive number of stage-activations",
                               text);
            flags->generator.memory_cap = caps;
          },
          "stage-activations that a device never exceeds: one number, or one per device (zb, "
          "adaptive-v)")
      ->type_name("X[,X..]");
  add_text(*command, "--block", flags->block_file, "building block in TOML (schedule block)")
      ->type_name("FILE");
  flags->pricing.add(*command, kTimesHelp);
  command->add_flag("--redeal", flags->pricing.redeal,
                    "deal the layers of the costs file to this schedule's stages, whatever stages "
                    "it was measured on");
  flags->pricing.add_reduce_time(*command);
  add_asynchronous(*command, options);
  add_int(*command, "--buffers", flags->buffers, 0, 1 << 30,
          "fail if a device needs more than N receive buffers");
  add_text(*command, "--backward", flags->backward,
           "split: every B as I, W; fused: every I with its W right behind as B")
      ->type_name("split|fused");
  command->add_flag("--reduce", flags->reduce,
                    "reduce each stage's gradients (REDUCE_GRAD) as soon as they are complete");
  command->add_flag("--timeline", flags->timeline, "add the op times to json");
  command->add_flag("--lowered", flags->lowered,
                    "write the sends and receives, too (json, csv, torch-csv); torch-csv also gets "
                    "REDUCE_GRAD, UNSHARD and RESHARD, which PyTorch needs");
  flags->output.add(*command, "grid (default), svg, html, chrome, json, csv, torch-csv");
  command->callback([flags, &exit_code] { run(*flags, exit_code); });
}

}  // namespace sluice::cli
