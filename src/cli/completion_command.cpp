// sluice help [COMMAND] and sluice completion SHELL: both say what the other commands said when
// they added themselves.
#include <algorithm>

#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cli/run_config.h"

namespace sluice::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({}))
    names.push_back(command->get_name());
  return names;
}

void help(const CLI::App& app, const std::string& name) {
  // app.help() would be the help of the command that runs, which is this one.
  if (name.empty())
    return OutputFlags().write(
        app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal));
  for (const CLI::App* command : app.get_subcommands({}))
    if (command->get_name() == name) return OutputFlags().write(command->help(app.get_name()));
  const std::vector<std::string> names = command_names(app);
  const std::string nearest = nearest_name(name, names);
  throw user_error("'{}' is no command{}; the commands are {}", name,
                   nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest),
                   join(names, ", "));
}

// Every way to write the command's flags.
std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames())
      flags.push_back("--" + name);
    for (const std::string& name : option->get_snames())
      flags.push_back("-" + name);
  }
  if (command.get_allow_extras())
    for (const std::string& flag : config_flags())
      flags.push_back(flag);
  return flags;
}

// "grid" and "svg" of "grid (default), svg".
std::vector<std::string> formats_of(const CLI::App& command) {
  std::vector<std::string> names;
  const CLI::Option* option = command.get_option_no_throw("--format");
  if (option == nullptr) return names;
  for (const std::string_view part : split(option->get_description(), ',')) {
    const std::string_view name = trim(part);
    names.emplace_back(name.substr(0, name.find(' ')));
    if (names.back().find_first_not_of("abcdefghijklmnopqrstuvwxyz-") != std::string::npos)
      return {};  // no list, but a sentence
  }
  return names;
}

// What may stand where no flag does; nothing: the name of a file.
std::vector<std::string> words_of(const CLI::App& app, const std::string& command) {
  if (command == "help") return command_names(app);
  if (command == "completion") return {"bash", "zsh"};
  std::vector<std::string> names;
  if (command == "schedule" || command == "compare")
    for (const Generator* generator : all_generators())
      names.emplace_back(generator->name);
  return names;
}

constexpr const char* kStart = R"(_sluice() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i
  local flags= formats= words=
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      -*) ;;
      *)
        command=${COMP_WORDS[i]}
        break
        ;;
    esac
  done
  case $command in
)";

// After a flag that takes a file, and where no word is known, the shell completes file names.
constexpr const char* kEnd = R"(  esac
  case $before in
    --format) words=$formats ;;
    --costs | --out | --block | --trace | --model) words= ;;
    *) case $word in -*) words=$flags ;; esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  case ${COMPREPLY[0]} in *=) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _sluice sluice ./sluice
)";

std::string bash_script(const CLI::App& app) {
  std::string out = kStart;
  out += fmt::format("    '') words='{}' flags='--help --version' ;;\n",
                     join(command_names(app), " "));
  for (const CLI::App* command : app.get_subcommands({}))
    out +=
        fmt::format("    {})\n      flags='{}'\n      formats='{}'\n      words='{}'\n      ;;\n",
                    command->get_name(), join(flags_of(*command), " "),
                    join(formats_of(*command), " "), join(words_of(app, command->get_name()), " "));
  return out + kEnd;
}

void completion(const CLI::App& app, const std::string& shell) {
  if (shell != "bash" && shell != "zsh")
    throw user_error("completion is for '{}': bash and zsh are known", shell);
  std::string script = bash_script(app);
  if (shell == "zsh") script = "autoload -U +X bashcompinit && bashcompinit\n" + script;
  OutputFlags().write(script);
}

}  // namespace

void add_help(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("help", "what a command does and which flags it takes");
  command->add_option("command", *name, "the command (default: an overview)");
  command->callback([name, &app] { help(app, *name); });
}

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "a script that completes commands, flags and names");
  command->add_option("shell", *shell, "bash or zsh")->required();
  command->footer("Use it with: source <(sluice completion bash)");
  command->callback([shell, &app] { completion(app, *shell); });
}

}  // namespace sluice::cli
