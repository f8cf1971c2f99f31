// The data of a run, as its configuration names it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sluice/config/config.h"
#include "sluice/data/dataset.h"

namespace sluice {

struct Datasets {
  Dataset training;
  std::optional<Dataset> held_out;  // where the run validates
};

// Opens data.path; for the bert shape with masked tokens, the mask being the last token of the
// vocabulary. Text is read whole, which blocks. REQUIRES: a resolved configuration. Throws
// UserError: 2 for a missing file or a value that does not fit the data, 3 for data that cannot be
// trusted.
Datasets open_datasets(const Config& config);

// What was dropped or truncated, one line for each split.
std::vector<std::string> overlong_notes(const Datasets& data);

}  // namespace sluice
