#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice {

// One row per schedule, in the order that --list and compare show them.
#define SLUICE_GENERATORS(ROW) \
  ROW(gpipe)                   \
  ROW(one_f_one_b)             \
  ROW(interleaved_1f1b)        \
  ROW(looped_bfs)              \
  ROW(zb_h1)                   \
  ROW(zb_h2)                   \
  ROW(zb_1p)                   \
  ROW(zb_2p)                   \
  ROW(zb)                      \
  ROW(zb_v)                    \
  ROW(zb_v_auto)               \
  ROW(v_min)                   \
  ROW(v_half)                  \
  ROW(v_zb)                    \
  ROW(one_f_one_b_v)           \
  ROW(adaptive_v)              \
  ROW(interleaved_zb)          \
  ROW(dualpipe_v)              \
  ROW(dualpipe)                \
  ROW(gis)                     \
  ROW(seq1f1b)                 \
  ROW(seq1f1b_i)               \
  ROW(seq_zb)                  \
  ROW(amdp)                    \
  ROW(async_1f1b)              \
  ROW(pipedream)               \
  ROW(pipedream_2bw)           \
  ROW(xpipe)                   \
  ROW(block)

namespace generators {
#define SLUICE_DECLARE(row) extern const Generator row;
SLUICE_GENERATORS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
}  // namespace generators

namespace {

// A schedule with more ops than this does not fit the memory of an ordinary machine.
constexpr double kMaxOps = 40e6;

void check_range(std::string_view field, std::int64_t value, std::int64_t least,
                 std::int64_t most) {
  if (value < least || value > most)
    throw user_error("{} is {}: needs a whole number from {} to {}", field, value, least, most);
}

// "a, b and c": the schedules that have the knob.
std::string names_with(bool Knobs::*knob) {
  std::vector<std::string> names;
  for (const Generator* generator : all_generators())
    if (generator->knobs.*knob) names.emplace_back(generator->name);
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : fmt::format("{} and {}", join(names, ", "), last);
}

// "a and b do", "a does".
std::string readers_of(bool Knobs::*knob) {
  const std::string names = names_with(knob);
  return names + (names.find(' ') == std::string::npos ? " does" : " do");
}

}  // namespace

std::string MemoryCap::text() const {
  std::vector<std::string> texts;
  for (const double cap : caps_)
    texts.push_back(number(cap));
  return join(texts, ",");
}

const std::vector<const Generator*>& all_generators() {
#define SLUICE_LIST(row) &generators::row,
  static const std::vector<const Generator*> all = {SLUICE_GENERATORS(SLUICE_LIST)};
#undef SLUICE_LIST
  return all;
}

const Generator& find_generator(std::string_view name) {
  const std::string wanted = lower(name);
  std::vector<std::string> names;
  for (const Generator* generator : all_generators()) {
    if (wanted == generator->name) return *generator;
    names.emplace_back(generator->name);
    for (const std::string_view alias : generator->aliases) {
      if (wanted == lower(alias)) return *generator;
      names.emplace_back(alias);
    }
  }
  const std::string nearest = nearest_name(name, names);
  throw user_error("no schedule is named '{}'{}; sluice schedule --list shows all of them", name,
                   nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest));
}

namespace {

// Of the options that only asynchronous schedules read.
void add_asynchronous_problems(const Generator& generator, const AsynchronousOptions& a,
                               std::vector<std::string>& problems) {
  const Knobs& knobs = generator.knobs;
  const auto unread = [&](std::string_view field, const auto& value, bool Knobs::*knob) {
    problems.push_back(fmt::format("`{}` is {}: {} does not read it; {}", field, value,
                                   generator.name, readers_of(knob)));
  };
  if (!knobs.orders) {
    if (a.order != AmdpOrder::automatic) unread("order", name_of(a.order), &Knobs::orders);
    if (a.pipes != 0) unread("pipes", a.pipes, &Knobs::orders);
    if (a.in_flight != 0) unread("in_flight", a.in_flight, &Knobs::orders);
    if (a.border != 0) unread("border", a.border, &Knobs::orders);
    if (a.update_slot != 0) unread("update_slot", a.update_slot, &Knobs::orders);
  }
  if (!knobs.weights && a.weights) unread("weights", name_of(*a.weights), &Knobs::weights);
  if (!knobs.windows) {
    if (a.max_mismatch) unread("max_mismatch", *a.max_mismatch, &Knobs::windows);
    if (a.max_delay) unread("max_delay", *a.max_delay, &Knobs::windows);
  }
}

}  // namespace

std::vector<std::string> knob_problems(const Generator& generator, const GeneratorOptions& o) {
  const Knobs& knobs = generator.knobs;
  std::vector<std::string> problems;
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> text, Args&&... args) {
    problems.push_back(fmt::format(text, std::forward<Args>(args)...));
  };
  if (const int v = o.stages_per_device; v != 0 && v != knobs.default_stages_per_device) {
    if (knobs.block)
      add("`stages_per_device` is {}: the block file says how many; leave the `field` out", v);
    else if (!knobs.stages_per_device)
      add("`stages_per_device` is {}: {} always has {}; leave the `field` out", v, generator.name,
          knobs.default_stages_per_device);
  }
  if (!knobs.group_size && o.group_size != 0)
    add("`group_size` is {}: {} has no groups; {} do", o.group_size, generator.name,
        names_with(&Knobs::group_size));
  if (!knobs.slices && o.slices != 1)
    add("`slices` is {}: {} does not cut sequences; {} do", o.slices, generator.name,
        names_with(&Knobs::slices));
  if (!knobs.windows && o.windows != 1)
    add("`windows` is {}: {} updates the weights once, behind its last microbatch; {} go on",
        o.windows, generator.name, names_with(&Knobs::windows));
  add_asynchronous_problems(generator, o.asynchronous, problems);
  if (!knobs.memory_cap && o.memory_cap)
    add("`memory_cap` is {}: {} takes no cap; {} do", o.memory_cap->text(), generator.name,
        names_with(&Knobs::memory_cap));
  else if (o.memory_cap && o.memory_cap->size() != 1 &&
           o.memory_cap->size() != static_cast<std::size_t>(o.devices))
    add("`memory_cap` has {} numbers, but there are {} devices: give one per device, or one for "
        "all",
        o.memory_cap->size(), o.devices);
  if (!knobs.block && !o.block.name.empty())
    add("`block` is '{}': {} has its own order; use the schedule named block", o.block.name,
        generator.name);
  if (knobs.block && o.block.name.empty())
    add("{} needs `block` FILE (a building block in TOML; see examples/)", generator.name);
  return problems;
}

Schedule generate_schedule(const Generator& generator, GeneratorOptions options) {
  if (options.stages_per_device == 0)
    options.stages_per_device = generator.knobs.default_stages_per_device;
  check_range("`devices`", options.devices, 1, 1 << 20);
  check_range("`microbatches`", options.microbatches, 1, 1 << 26);
  check_range("`windows`", options.windows, 1, 1 << 26);
  check_range("`stages_per_device`", options.stages_per_device, 1, 1024);
  check_range("`slices`", options.slices, 1, kMaxSlices);
  if (options.group_size != 0) check_range("`group_size`", options.group_size, 1, 1 << 26);
  if (const auto problems = knob_problems(generator, options); !problems.empty())
    throw UserError(problems.front());
  const auto stages = static_cast<std::size_t>(options.devices) *
                      static_cast<std::size_t>(options.stages_per_device);
  if (generator.knobs.times && !options.stage_times.empty() && options.stage_times.size() != stages)
    throw user_error(
        "the costs are of {} stages, and {} on {} devices has {}: profile this schedule (sluice "
        "profile), or use schedule --redeal",
        options.stage_times.size(), generator.name, options.devices, stages);
  const double ops = 3.0 * options.devices * options.stages_per_device * options.microbatches *
                     options.windows * options.slices;
  if (ops > kMaxOps)
    throw user_error(
        "{} devices x {} stages each x {} microbatches x {} slices make about {:.3g} ops: at most "
        "{:.3g} can be held; use fewer microbatches{}",
        options.devices, options.stages_per_device,
        options.windows == 1
            ? fmt::format("{}", options.microbatches)
            : fmt::format("{} windows x {}", options.windows, options.microbatches),
        options.slices, ops, kMaxOps, options.windows == 1 ? "" : " or windows");
  SLUICE_CHECK(options.slice_sizes.empty() ||
                   options.slice_sizes.size() == static_cast<std::size_t>(options.slices),
               "{} sizes for {} slices", options.slice_sizes.size(), options.slices);
  Schedule schedule = generator.generate(options);
  schedule.slice_sizes = options.slice_sizes;
  return schedule;
}

Schedule generate_schedule(std::string_view name, const GeneratorOptions& options) {
  return generate_schedule(find_generator(name), options);
}

}  // namespace sluice
