// Runs the real program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::test {

struct Ran {
  int code = -1;
  std::string out;  // standard output
  std::string err;  // standard error
};

// `arguments` go through the shell; `folder` is the current folder ("" for the present one).
Ran run_sluice(const std::string& arguments, const std::string& folder = "");
Ran run_shell(const std::string& command, const std::string& folder = "");

// Whether the line is one of those that a training run begins with: model, mesh and so on.
bool is_banner(std::string_view line);

// Expects a mistake's answer: one line on standard error, nothing on standard output, and the words
// that matter.
void expect_error(const std::string& arguments, int code, const std::vector<std::string>& words);

// A fresh folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const;  // full path

 private:
  std::string path_;
};

}  // namespace sluice::test
