// TensorBoard's event files, scalars only: a sequence of checksummed records, appended to and
// never rewritten.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/runtime/files/atomic_file.h"

namespace sluice {

std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);  // the form that is stored

// Whole records, as they lie in the file. Times are seconds since 1970.
std::string tfevents_first_record(double wall_time);
// A run starts at `step`: TensorBoard forgets what files before this one said of that step and of
// later ones.
std::string tfevents_start_record(double wall_time, std::int64_t step);
std::string tfevents_scalar_record(double wall_time, std::int64_t step, std::string_view tag,
                                   float value);

struct Scalar {
  std::string tag;
  double value = 0;
};

class TfeventsWriter {
 public:
  // Makes `folder` and a new file events.out.tfevents.<seconds>.<host> in it, with a further number
  // where one of that name exists. `wall_time` is now; steps from `first_step` on are this file's.
  TfeventsWriter(FileSystem& files, const std::string& folder, const std::string& host,
                 double wall_time, std::int64_t first_step);

  const std::string& path() const { return path_; }

  // All scalars of a step in one write; they are in the file when it returns. UserError as in
  // AppendFile.
  void append(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

 private:
  std::string path_;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace sluice
