// What the program answers in JSON.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/run_sluice.h"

namespace sluice::test {

// Of a command that succeeds, with --format json.
inline nlohmann::json json_of(const std::string& arguments, const std::string& folder = "") {
  const Ran ran = run_sluice(arguments + " --format json", folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return ran.code == 0 ? nlohmann::json::parse(ran.out) : nlohmann::json();
}

}  // namespace sluice::test
