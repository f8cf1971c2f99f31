// Any bytes at all: the reader refuses them with a UserError, or reads a schedule that is written
// and read back the same. What the validator makes of it must not crash, and what it proves must
// run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sluice/base/error.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/validate.h"
#include "support/rendezvous_executor.h"

namespace sluice {
namespace {

// Larger schedules cost the validator time and teach nothing new.
constexpr std::size_t kMaxCells = 2000;
constexpr std::size_t kMaxDevices = 100;

void require(bool holds, const char* what, const std::string& text) {
  if (holds) return;
  std::fprintf(stderr, "%s:\n%s\n", what, text.c_str());
  std::abort();
}

void try_text(std::string_view bytes) {
  Schedule schedule;
  try {
    schedule = read_schedule(bytes);
  } catch (const UserError&) {
    return;
  }
  const std::string text = write_schedule(schedule, TextFlavour::native);
  require(read_schedule(text) == schedule, "not read back the same", text);
  if (schedule.num_cells() > kMaxCells || schedule.programs.size() > kMaxDevices) return;
  const Validation validation = validate(schedule);
  const Schedule& form = validation.lowered.programs.empty() ? schedule : validation.lowered;
  const RunResult run = run_schedule(form, Transfers::rendezvous);
  require(validation.valid() == (run.end == ExecutionEnd::completed), "proof and executor differ",
          text);
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::try_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
