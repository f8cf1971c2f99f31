// What a library caller reads when options and generator do not fit.
#include <gtest/gtest.h>

#include "sluice/schedule/generators/generator.h"

namespace sluice {
namespace {

using Texts = std::vector<std::string>;

std::string refusal(const std::string& name, const GeneratorOptions& options) {
  try {
    generate_schedule(name, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

GeneratorOptions small(int devices = 4) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = 8;
  return options;
}

TEST(Knobs, AMistakeIsCalledByItsField) {
  EXPECT_EQ(refusal("dualpipe", small(3)),
            "`devices` is 3: dualpipe needs an even number; dualpipe-v takes any");
  GeneratorOptions options = small();
  options.stages_per_device = 3;
  EXPECT_EQ(refusal("v-half", options),
            "`stages_per_device` is 3: v-half always has 2; leave the `field` out");
  options = small();
  options.memory_cap = 0.5;
  EXPECT_EQ(refusal("zb", options),
            "`memory_cap` is 0.5: an F alone holds 1 stage-activation; give a cap of 1 to 8 (no "
            "limit)");
}

TEST(Knobs, AllProblemsAreListed) {
  const Generator& generator = find_generator("1f1b");
  GeneratorOptions options = small();
  EXPECT_EQ(knob_problems(generator, options), Texts{});
  options.stages_per_device = 2;
  options.group_size = 4;
  options.memory_cap = 3;
  EXPECT_EQ(knob_problems(generator, options),
            (Texts{"`stages_per_device` is 2: 1f1b always has 1; leave the `field` out",
                   "`group_size` is 4: 1f1b has no groups; interleaved-1f1b, interleaved-zb and "
                   "gis do",
                   "`memory_cap` is 3: 1f1b takes no cap; zb and adaptive-v do"}));
}

}  // namespace
}  // namespace sluice
