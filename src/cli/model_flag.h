// --model: the model that a schedule is priced for.
#pragma once

#include <string>

#include "sluice/report/pricing.h"

namespace sluice::cli {

// A model by its name (cost/known_models.h) or, where none has that name, by a file: config.json of
// Hugging Face, whose name ends with .json, or else the configuration of a run. Throws UserError,
// which names the file, or the names where there is neither.
NamedModel named_model(const std::string& name);

// What else --model takes than names, for messages.
inline constexpr const char* kModelFiles =
    "the file of a model: a run's configuration (TOML) or a Hugging Face config.json";

}  // namespace sluice::cli
