// A reader of TensorBoard's event files of its own: shares nothing with the writer but the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice::test {

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;  // "" except in a file's first record
  bool starts_run = false;
  std::map<std::string, float> scalars;
};

// Every record of a file's bytes. Throws std::runtime_error for a wrong checksum or a cut record.
std::vector<Event> read_events(const std::string& bytes);

// What TensorBoard shows of a folder: its event files in the order of their names, where the start
// of a run takes back the steps from its own on. Scalars by tag and step; throws for a step that
// was given twice.
std::map<std::string, std::map<std::int64_t, float>> read_event_folder(const std::string& folder);

}  // namespace sluice::test
