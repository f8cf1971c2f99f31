#include "support/run_sluice.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sluice/base/error.h"
#include "support/golden.h"

namespace sluice::test {

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
  SLUICE_CHECK(mkdtemp(pattern.data()) != nullptr, "cannot make {}", pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

Ran run_shell(const std::string& command, const std::string& folder) {
  const TemporaryFolder scratch;
  const std::string out = scratch.path() + "/out", err = scratch.path() + "/err";
  std::string line;
  if (!folder.empty()) line += "cd '" + folder + "' && ";
  line += "{ " + command + "\n} >'" + out + "' 2>'" + err + "' </dev/null";
  const int status = std::system(line.c_str());
  Ran ran;
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ran.out = read_text(out);
  ran.err = read_text(err);
  return ran;
}

Ran run_sluice(const std::string& arguments, const std::string& folder) {
  return run_shell(std::string("'") + SLUICE_BINARY + "' " + arguments, folder);
}

bool is_banner(std::string_view line) {
  for (const std::string_view part : {"model", "mesh", "schedule", "data", "folders"})
    if (line.starts_with(fmt::format("sluice: {}: ", part))) return true;
  return false;
}

void expect_error(const std::string& arguments, int code, const std::vector<std::string>& words) {
  SCOPED_TRACE(arguments);
  const Ran ran = run_sluice(arguments);
  EXPECT_EQ(ran.code, code);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_TRUE(ran.err.starts_with("sluice: ")) << ran.err;
  EXPECT_LT(ran.err.size(), 500u);
  for (const std::string& word : words)
    EXPECT_NE(ran.err.find(word), std::string::npos) << "no '" << word << "' in: " << ran.err;
}

}  // namespace sluice::test
