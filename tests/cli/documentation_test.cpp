// Every command shown in the documentation is run, and what it prints is what is shown.
//
// In README.md, CONTRIBUTING.md, docs/ and examples/, a ```console block holds commands (`$
// ./sluice ...`) and their output. A line `...` stands for any number of lines. Blocks run in
// order, in a folder of their own with the examples beside them; other commands than ./sluice are
// not run. tools/update_docs rewrites the output shown. Commands in other blocks and in sentences
// are not run either: their subcommands, flags and keys must exist.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Command {
  std::string where;
  std::string arguments;
  std::vector<std::string> expected;
};

std::vector<Command> commands_of(const fs::path& file) {
  const std::string text = test::read_text(file.string());
  std::vector<Command> commands;
  bool inside = false, ours = false;
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.starts_with("```")) {
      inside = line == "```console";
      ours = false;
    } else if (inside && line.starts_with("$ ")) {
      ours = line.starts_with("$ ./sluice ");
      if (ours)
        commands.push_back({fmt::format("{}:{}", file.filename().string(), number),
                            std::string(line.substr(std::string("$ ./sluice ").size())),
                            {}});
    } else if (inside && ours) {
      commands.back().expected.emplace_back(line);
    }
  }
  return commands;
}

// `...` matches any number of lines.
bool same(const std::vector<std::string>& expected, const std::vector<std::string>& actual,
          std::size_t e = 0, std::size_t a = 0) {
  if (e == expected.size()) return a == actual.size();
  if (expected[e] == "...") {
    for (std::size_t skip = a; skip <= actual.size(); ++skip)
      if (same(expected, actual, e + 1, skip)) return true;
    return false;
  }
  return a < actual.size() && expected[e] == actual[a] && same(expected, actual, e + 1, a + 1);
}

// Of a training run, the program without torch answers what needs no training.
bool needs_engine(std::string_view command) {
  const std::string_view verb = command.substr(0, command.find(' '));
  const auto has = [&](std::string_view flag) { return command.find(flag) != command.npos; };
  if (verb == "train") return !has("--dry-run") && !has("--print-config") && !has("--help");
  return verb == "generate" || verb == "evaluate" || verb == "inspect" || verb == "import" ||
         verb == "export" || verb == "profile";
}

std::vector<fs::path> documents() {
  const fs::path root = SLUICE_SOURCE_DIR;
  std::vector<fs::path> files = {root / "README.md", root / "CONTRIBUTING.md"};
  for (const char* folder : {"docs", "examples"})
    for (const auto& entry : fs::directory_iterator(root / folder))
      if (entry.path().extension() == ".md") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Documentation, EveryCommandPrintsWhatIsShown) {
  int run = 0;
  for (const fs::path& file : documents()) {
    const test::TemporaryFolder folder;
    const fs::path source = SLUICE_SOURCE_DIR, scratch = folder.path();
    fs::copy(source / "examples", scratch / "examples");
    fs::create_directories(scratch / "docs/images");
    std::vector<std::string> not_made;
    for (const Command& command : commands_of(file)) {
      SCOPED_TRACE(command.where + ": ./sluice " + command.arguments);
      const bool engine = needs_engine(command.arguments);
      // Without the engine neither it nor what reads its result can run.
      const bool reads = std::any_of(not_made.begin(), not_made.end(), [&](const auto& name) {
        return command.arguments.find(name) != std::string::npos;
      });
      if (std::string(SLUICE_ENGINE_BINARY).empty() && (engine || reads)) {
        const std::size_t out = command.arguments.find("--out ");
        if (out != std::string::npos) not_made.push_back(command.arguments.substr(out + 6));
        continue;
      }
      const test::Ran ran = test::run_shell(
          fmt::format("'{}' {}", engine ? SLUICE_ENGINE_BINARY : SLUICE_BINARY, command.arguments),
          folder.path());
      std::vector<std::string> actual;
      const std::string text = ran.out + ran.err;
      for (const std::string_view line : split(text, '\n'))
        actual.emplace_back(line);
      actual.pop_back();  // after the last line end
      if (command.expected.empty() || command.expected == std::vector<std::string>{"..."})
        EXPECT_EQ(ran.code, 0) << text;
      else
        EXPECT_TRUE(same(command.expected, actual)) << "it printed:\n" << text;
      ++run;
    }
    // Pictures are what Sluice draws now.
    for (const auto& picture : fs::directory_iterator(scratch / "docs/images"))
      EXPECT_EQ(test::read_text(picture.path().string()),
                test::read_text((source / "docs/images" / picture.path().filename()).string()))
          << picture.path().filename() << " is out of date: run tools/update_docs";
  }
  EXPECT_GE(run, 10);
}

// Commands that are named but not run: those in other code blocks and between backticks. From the
// word behind "sluice " on.
std::vector<std::string> commands_named_in(const fs::path& file) {
  const std::string text = test::read_text(file.string());
  std::vector<std::string> commands;
  const auto add = [&](std::string_view code, std::string_view program) {
    if (code.starts_with("$ ")) code.remove_prefix(2);
    if (const auto at = code.find(program); at != code.npos && (at == 0 || code[at - 1] == ' '))
      commands.emplace_back(code.substr(at + program.size()));
  };
  std::string prose;
  bool inside = false, console = false;
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with("```")) {
      inside = !inside;
      console = line == "```console";
    } else if (inside && !console) {
      add(line.substr(0, line.find(" #")), "./sluice ");
    } else if (!inside) {
      prose.append(line).append(line.empty() ? "\n" : " ");
    }
  }
  for (const std::string_view paragraph : split(prose, '\n')) {
    const std::vector<std::string_view> parts = split(paragraph, '`');
    for (std::size_t n = 1; n < parts.size(); n += 2)
      add(parts[n], parts[n].starts_with("sluice ") ? "sluice " : "./sluice ");
  }
  return commands;
}

bool has_key(const std::string& section, const std::string& key) {
  const std::string text = test::read_text(SLUICE_SOURCE_DIR "/docs/configuration.md");
  const auto begin = text.find("\n## " + section + "\n");
  if (begin == text.npos) return false;
  const auto end = std::min(text.find("\n## ", begin + 1), text.size());
  return text.substr(begin, end - begin).find("\n| `" + key + "` |") != std::string::npos;
}

// Of what is not run, the subcommand, its flags and the configuration's keys exist.
TEST(Documentation, EveryCommandNamedInPassingHasItsFlags) {
  std::map<std::string, std::string> help;  // by subcommand
  int named = 0;
  for (const fs::path& file : documents())
    for (const std::string& command : commands_named_in(file)) {
      SCOPED_TRACE(file.filename().string() + ": sluice " + command);
      const std::vector<std::string_view> words = split(command, ' ');
      const std::string verb(words[0]);
      if (verb.empty() || std::islower(static_cast<unsigned char>(verb[0])) == 0) continue;
      ++named;
      const bool engine = needs_engine(verb + " --help");
      if (std::string(SLUICE_ENGINE_BINARY).empty() && engine) continue;
      if (!help.contains(verb)) {
        const test::Ran ran = test::run_shell(
            fmt::format("'{}' {} --help", engine ? SLUICE_ENGINE_BINARY : SLUICE_BINARY, verb));
        EXPECT_EQ(ran.code, 0) << ran.err;
        help[verb] = ran.out;
      }
      for (std::string_view word : words) {
        if (word.starts_with("[")) word.remove_prefix(1);
        word = word.substr(0, word.find_first_of("=]"));
        if (!word.starts_with("--") || word == "--section.key" || word == "--no-install") continue;
        if (const auto dot = word.find('.'); dot != word.npos)
          EXPECT_TRUE(
              has_key(std::string(word.substr(2, dot - 2)), std::string(word.substr(dot + 1))))
              << word;
        else
          EXPECT_NE(help[verb].find(std::string(word)), std::string::npos) << word;
      }
    }
  EXPECT_GE(named, 20);
}

// Text outside of code blocks, line by line.
std::vector<std::string> prose_of(const fs::path& file) {
  std::vector<std::string> lines;
  bool inside = false;
  const std::string all = test::read_text(file.string());
  for (const std::string_view line : split(all, '\n')) {
    const bool fence = line.starts_with("```");
    if (fence) inside = !inside;
    lines.emplace_back(inside || fence ? "" : line);
  }
  return lines;
}

// The anchor that a heading gets: lower case, blanks as hyphens, punctuation dropped.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (c == ' ')
      anchor += '-';
  return anchor;
}

bool has_anchor(const fs::path& file, const std::string& anchor) {
  for (const std::string& line : prose_of(file))
    if (line.starts_with("#") &&
        anchor_of(trim(line.substr(line.find_first_not_of('#')))) == anchor)
      return true;
  return false;
}

TEST(Documentation, EveryRelativeLinkLeadsToAFileAndAHeading) {
  for (const fs::path& file : documents()) {
    std::string text;
    for (const std::string& line : prose_of(file))
      text.append(line).append("\n");
    for (std::size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 1)) {
      const std::string link = text.substr(at + 2, text.find(')', at) - at - 2);
      if (link.find("://") != std::string::npos) continue;
      const std::size_t hash = std::min(link.find('#'), link.size());
      const fs::path target = hash == 0 ? file : file.parent_path() / link.substr(0, hash);
      ASSERT_TRUE(fs::exists(target)) << file << ": " << link;
      if (hash < link.size()) {
        EXPECT_TRUE(has_anchor(target, link.substr(hash + 1)))
            << file << ": no heading for " << link;
      }
    }
  }
}

// Tables and code excepted: a line of theirs cannot be broken.
TEST(Documentation, ProseIsWrappedAt120Characters) {
  std::vector<fs::path> files = documents();
  files.push_back(fs::path(SLUICE_SOURCE_DIR) / "docs/benchmarks/h200.md");
  files.push_back(fs::path(SLUICE_SOURCE_DIR) / "tests/data/README.md");
  for (const fs::path& file : files) {
    int number = 0;
    for (const std::string& line : prose_of(file)) {
      ++number;
      const auto characters = std::count_if(line.begin(), line.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      });
      if (!line.starts_with("|")) {
        EXPECT_LE(characters, 120) << file << ":" << number << ": " << line;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
