// Compares a text with a file of tests/data/trace. With SLUICE_UPDATE_GOLDENS set in the
// environment the file is written instead; look at the difference before you keep it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace sluice::testing {

inline void expect_golden(const std::string& text, const std::string& file) {
  const std::string path = std::string(SLUICE_TEST_DATA) + "/trace/" + file;
  if (std::getenv("SLUICE_UPDATE_GOLDENS") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << "cannot read " << path;
  std::ostringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(golden.str(), text) << "differs from " << file;
}

}  // namespace sluice::testing
