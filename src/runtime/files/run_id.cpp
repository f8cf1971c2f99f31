#include "sluice/runtime/files/run_id.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "sluice/base/text.h"
#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/checkpoint_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// "a/b/" and "./a/b" are "a/b".
fs::path plain(const std::string& folder) {
  return fs::path(folder + "/").lexically_normal().parent_path();
}

bool loads_from(const std::string& folder, const std::string& load) {
  if (load == "latest") return true;
  return load != "none" &&
         (plain(load) == plain(folder) || plain(load).parent_path() == plain(folder));
}

}  // namespace

std::string new_run_id() { return fmt::format("{:08x}", std::random_device()()); }

std::string run_state(const std::string& run, const std::string& folder, double gradient_norm,
                      const std::string& planner) {
  Json state{{"run", run}, {"folder", plain(folder).string()}, {"gradient_norm", gradient_norm}};
  if (!planner.empty()) state["planner"] = planner;
  return state.dump();
}

std::string changed_planner(const std::string& state, const std::string& planner) {
  const Json json = Json::parse(state);
  const auto found = json.find("planner");
  if (planner.empty() || found == json.end() || !found->is_string()) return "";
  const std::string was = found->get<std::string>();
  const std::vector<std::string_view> before = split(was, ';'), now = split(planner, ';');
  if (before.size() != now.size()) return fmt::format("{} (was {})", planner, was);
  std::vector<std::string> changes;
  for (std::size_t n = 0; n < now.size(); ++n)
    if (now[n] != before[n])
      changes.push_back(fmt::format("{} (was {})", trim(now[n]), trim(before[n])));
  return join(changes, "; ");
}

double gradient_norm_of(const std::string& state) {
  const Json json = Json::parse(state);
  const auto found = json.find("gradient_norm");
  return found != json.end() && found->is_number() ? found->get<double>() : 0;
}

std::string run_id(const std::string& folder, const std::string& load, std::int64_t last_step) {
  const std::string resumed = folder + "/" + step_folder_name(last_step);
  if (folder.empty() || !loads_from(folder, load) || !is_there(resumed)) return new_run_id();
  const Json state = Json::parse(Checkpoint(resumed).manifest().info.state);
  const auto text = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const std::string run = text("run");
  return !run.empty() && text("folder") == plain(folder).string() ? run : new_run_id();
}

}  // namespace sluice
