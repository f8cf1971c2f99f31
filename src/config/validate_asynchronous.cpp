// Schedules that go on from one update of the weights to the next (docs/asynchronous.md).
#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/config/problems.h"
#include "sluice/config/resolve.h"
#include "sluice/config/schema.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice {
namespace {

// What a file of a schedule says itself, or cannot be changed in it. Whether the rest fits is known
// when it is read (run/runnable.h).
void check_csv(const Config& config, Problems& problems) {
  for (const std::string& key : given_asynchronous_keys(config)) {
    const std::string name = key.substr(0, key.find(' '));
    if (name == "asynchronous.flush")
      problems.add(
          "{}: in a CSV updates have their places among the ops; give one with a single window, "
          "which ends every step before the next begins, or name a schedule",
          key);
    else if (name == "asynchronous.weights")
      problems.add(
          "{}: the CSV says in its first line which weights it uses; write it by sluice schedule "
          "--weights, or leave the key out",
          key);
    else if (name != "asynchronous.states" && name != "asynchronous.max_mismatch" &&
             name != "asynchronous.max_delay")
      problems.add("{}: the CSV's order is fixed; leave the key out", key);
  }
}

}  // namespace

std::vector<std::string> given_asynchronous_keys(const Config& config) {
  const Config usual;
  std::vector<std::string> given;
  for (const ConfigKey& key : config_schema())
    if (key.section == "asynchronous" && key.get(config) != key.get(usual))
      given.push_back(fmt::format("{} is {}", key.full_name(), toml_value(key.get(config))));
  return given;
}

void check_asynchronous(const Config& config, Problems& problems) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) return check_csv(config, problems);
  const std::string& name = parallelism.pipeline_parallel_schedule;
  if (!goes_on(config)) {
    for (const std::string& key : given_asynchronous_keys(config))
      problems.add(
          "{}, and {} ends every step before the next begins: leave the key out, or take a "
          "schedule that goes on, such as amdp",
          key, name);
    return;
  }
  if (parallelism.fuse_backward)
    problems.add(
        "parallelism.fuse_backward is true: {} has an order of its own for it; set "
        "asynchronous.backward = fused instead",
        name);
  if (parallelism.deferred_validation && config.asynchronous.flush)
    problems.add(
        "parallelism.deferred_validation is true with asynchronous.flush: the owner of a stage "
        "would take its update back, and the other devices that hold the stage would not; leave "
        "one of the keys out, or name a synchronous schedule");
  else if (parallelism.deferred_validation)
    problems.add(
        "parallelism.deferred_validation is true: {} updates while the next step runs, and an "
        "update cannot be taken back then; leave the key out",
        name);
}

}  // namespace sluice
