// Schedules as text: PyTorch's pipeline CSV (one row per device, one op per cell), extended with
// `.slice`, `@pipe`, UPDATE, windows and an optional first line `# sluice {json}` that carries what
// the ops alone do not say. The grammar is in docs/schedule-format.md.
#pragma once

#include <string>
#include <string_view>

#include "sluice/schedule/schedule.h"

namespace sluice {

enum class TextFlavour {
  native,  // metadata line, slices and pipes
  torch    // exactly what torch.distributed.pipelining reads
};

// Throws UserError where the flavour cannot hold the schedule (torch: several slices or pipes).
std::string write_schedule(const Schedule& schedule, TextFlavour flavour);

// Reads either flavour, compute-only or with communication. Strict: every cell must be one whole
// op; idle cells are dropped. Throws UserError naming row and column, both from 1. What it returns
// is well-formed text, not a proved schedule: ops may be missing, misplaced or in a wrong order.
Schedule read_schedule(std::string_view text);

// The schedule of a file ("-": standard input), named after it unless its metadata has a name.
// Throws UserError that starts with the file's name.
Schedule read_schedule_file(const std::string& file);

}  // namespace sluice
