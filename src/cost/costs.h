// What an op costs: time, memory kept, bytes moved. One lookup by stage and slice, and where
// microbatches are unequal by microbatch and stage, whatever the source: unit times from the
// command line, or a profile file.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/cost/measured_on.h"
#include "sluice/cost/sequence_costs.h"
#include "sluice/cost/slices.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// Of one (stage, slice), or (microbatch, stage).
struct OpCosts {
  double f = 0, i = 0, w = 0, b = 0;  // durations
  double after_f = 0;                 // memory its stash holds from the start of F
  double after_i = 0;                 // ... from the end of I on, until W ends; may be more
  double kv = 0;  // K/V held from its F to the microbatch's last I; 0 unless sliced
  // Gradients of the slice's keys and values, held from the end of the microbatch's first I (of its
  // last slice) to the end of the slice's own; that of the last slice itself is never held.
  double kv_gradient = 0;
  double sent_forward = 0;  // bytes
  double sent_backward = 0;
};

struct Link {
  double latency = 0;
  double bytes_per_time = 0;  // 0: no limit
};

class Costs {
 public:
  // REQUIRES: table holds num_stages x num_slices entries, slices fastest.
  Costs(int num_stages, int num_slices, std::vector<OpCosts> table)
      : num_stages_(num_stages), num_slices_(num_slices), table_(std::move(table)) {}
  // Of ops that cost nothing yet.
  Costs(int num_stages, int num_slices)
      : Costs(num_stages, num_slices,
              std::vector<OpCosts>(static_cast<std::size_t>(num_stages) *
                                   static_cast<std::size_t>(num_slices))) {}

  int num_stages() const { return num_stages_; }
  int num_slices() const { return num_slices_; }
  const OpCosts& at(int stage, int slice) const {
    return table_[static_cast<std::size_t>(stage) * static_cast<std::size_t>(num_slices_) +
                  static_cast<std::size_t>(slice)];
  }
  OpCosts& at(int stage, int slice) {
    return const_cast<OpCosts&>(std::as_const(*this).at(stage, slice));
  }
  // Of microbatches that are not alike: microbatches x stages, stages fastest. at() stays what is
  // known of a mean one. REQUIRES: one slice.
  void set_microbatches(std::vector<OpCosts> table) { microbatches_ = std::move(table); }
  // 0: all are alike.
  int num_microbatches() const { return static_cast<int>(microbatches_.size()) / num_stages_; }
  const OpCosts& of(int microbatch, int stage, int slice) const {
    if (microbatches_.empty()) return at(stage, slice);
    return microbatches_[static_cast<std::size_t>(microbatch) *
                             static_cast<std::size_t>(num_stages_) +
                         static_cast<std::size_t>(stage)];
  }
  const OpCosts& of(const Op& op) const { return of(op.microbatch, op.stage, op.slice); }
  double duration(const Op& op) const;
  // Bytes of a stage's gradients that its REDUCE_GRAD hands to the data-parallel link.
  double reduce_bytes(int stage) const {
    return reduce.empty() ? 0 : reduce[static_cast<std::size_t>(stage)];
  }

  // What a stage's UPDATE takes on the device that owns it.
  double update_time(int stage) const {
    return update.empty() ? 0 : update[static_cast<std::size_t>(stage)];
  }

  Link link(int from, int to) const {
    const auto found = links.find({from, to});
    return found == links.end() ? default_link : found->second;
  }

  std::map<std::pair<int, int>, Link> links;  // ordered pairs of devices
  Link default_link;
  std::vector<double> reduce;  // per stage, see reduce_bytes(); empty: none
  std::vector<double> update;  // per stage, see update_time(); empty: none
  Link data_link;              // of every device to its data-parallel copies
  // Of a group run as one: the share of its shorter ops that hides behind the longest. 0: serial.
  double overlap = 0;
  // Speed of a busy device while 1..P of the P devices are busy, relative to all of them busy, as
  // which the durations are meant. Empty: always the same.
  std::vector<double> contention;
  std::vector<std::int64_t> layers;       // of each stage, where a profile says it; else empty
  std::vector<std::int64_t> slice_sizes;  // tokens of each slice, where a profile says it
  int unsplit_stage = -1;  // the first of which B alone is known, not I and W; -1: none
  bool measured = false;   // seconds and bytes; otherwise abstract units and stage-activations
  std::optional<MeasuredOn> measured_on;  // where a profile says it
  std::optional<SequenceCosts> flexsp;    // of sequences that ranks share, where a profile says it

 private:
  int num_stages_;
  int num_slices_;
  std::vector<OpCosts> table_;
  std::vector<OpCosts> microbatches_;  // empty: all are alike
};

// Every stage takes `times` on a whole microbatch, and a slice its share of them: by `shares`, or
// by tokens where there are none. The stash is one stage-activation, by tokens, of which
// `keep_after_i` stays between I and W; messages take `comm`.
Costs unit_costs(const Schedule& schedule, const OpTimes& times, double comm, double keep_after_i,
                 const SliceShares& shares = {});

// Throws UserError, starting with `name`, unless there is one speed per device, the last one 1.
void check_contention(const std::vector<double>& contention, int devices, std::string_view name);

// A costs file (docs/costs-format.md) for this schedule. Throws UserError naming the entry.
Costs costs_from_json(std::string_view json, const Schedule& schedule);
// The same whatever the schedule: without the links between its devices, and with a contention
// that nobody has checked. Throws UserError for a file of unequal microbatches, too, unless what it
// says of stages is all that is asked for.
Costs stage_costs_from_json(std::string_view json, bool of_stages_alone = false);
// What the file says of sequences that ranks share: its section `flexsp`, beside which it needs no
// stages. Throws UserError where there is none.
SequenceCosts sequence_costs_from_json(std::string_view json);
// One line on what a costs file was measured on, or that it does not say so.
std::string measured_on_note(const std::string& file, const Costs& costs);
inline constexpr std::size_t kMaxCostsBytes = std::size_t{64} << 20;
// Throws UserError, naming `who`, where I and W of some stage are not known apart.
void check_split(const Costs& costs, std::string_view who);
// The same as a file. REQUIRES: measured.
std::string costs_to_json(const Costs& costs);

// What generators that search need to know of costs, which need not have the schedule's number of
// slices. Throws UserError as check_split does.
struct SearchTimes {
  std::vector<OpTimes> stages;  // each stage's ops on a whole microbatch
  double comm = 0;              // a whole microbatch's largest message over the default link
};
SearchTimes search_times(const Costs& costs);

}  // namespace sluice
