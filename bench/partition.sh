#!/usr/bin/env bash
# bench/partition.sh [ROUNDS [PROGRAM]]: what parallelism.layers_per_stage = "auto" brings for a vocabulary of 32000 words.
#
# First what the simulator expects, on 2 and 4 devices. Then ROUNDS (default 5) real runs of each split on 2 rank threads,
# one after the other in turn so that both meet the same neighbours; the time of a run is the median of its steps without the first two.
set -euo pipefail
root=$(readlink -f "${BASH_SOURCE[0]%/*}/..")
rounds=${1:-5}
program=${2:-$root/sluice}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/run.toml" <<TOML
[model]
shape = "llama"
layers = 8
dim = 256
heads = 4
vocab_size = 32000
[data]
path = "$root/docs"
format = "text"
[training]
steps = 7
sequence_length = 256
global_batch_size = 8
[parallelism]
pipeline_parallel_degree = 2
[checkpoint]
folder = ""
TOML
schedules="1f1b interleaved-1f1b zb-v"

for devices in 2 4; do
  for schedule in $schedules; do
    printf '%s devices, %-17s ' "$devices" "$schedule"
    "$program" partition "$folder/run.toml" --parallelism.pipeline_parallel_degree=$devices \
      --parallelism.pipeline_parallel_schedule="$schedule" | grep -E '^simulated step|^parallelism' | paste -sd ' '
  done
done

median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
step_seconds() { # SCHEDULE SPLIT
  rm -rf "$folder/metrics"
  "$program" train "$folder/run.toml" --parallelism.pipeline_parallel_schedule="$1" \
    --parallelism.layers_per_stage="$2" --metrics.folder="$folder/metrics" >/dev/null 2>&1
  tail -n +3 "$folder/metrics/metrics.jsonl" | grep -o '"step_time_s":[0-9.e-]*' | cut -d: -f2 | median
}
for schedule in $schedules; do
  even=() auto=()
  for ((round = 0; round < rounds; ++round)); do
    even+=("$(step_seconds "$schedule" even)")
    auto+=("$(step_seconds "$schedule" auto)")
  done
  paste <(printf '%s\n' "${even[@]}") <(printf '%s\n' "${auto[@]}") |
    awk -v name="$schedule" '{printf "%-17s even %.3f s  auto %.3f s  %.3f\n", name, $1, $2, $2 / $1}'
  e=$(printf '%s\n' "${even[@]}" | median) a=$(printf '%s\n' "${auto[@]}" | median)
  awk -v name="$schedule" -v e="$e" -v a="$a" \
    'BEGIN {printf "%-17s median: even %.3f s  auto %.3f s  %.3f\n", name, e, a, a / e}'
done
