#!/usr/bin/env bash
# bench/sequences.sh [ROUNDS [PROGRAM [OLD_PROGRAM]]]: what data.packing = "sequences" costs and brings, on 2 rank threads.
#
# 1. Documents of one length, as packed documents and as sequences: the same matmuls and the same attention. With OLD_PROGRAM,
#    the packed documents of that program, too.
# 2. Documents whose lengths are spread like those of Wikipedia (log-normal, mean of the logarithm 5.95, deviation 1.26; at most
#    2048): as sequences, packed, and padded to the longest. Tokens are real ones: padding does not count.
#
# ROUNDS (default 5) runs of each, one after the other in turn so that all meet the same neighbours. Of a run, the tokens per
# second over its steps without the first two.
set -euo pipefail
root=$(readlink -f "${BASH_SOURCE[0]%/*}/..")
rounds=${1:-5}
program=${2:-$root/sluice}
old=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/run.toml" <<TOML
[model]
shape = "llama"
layers = 4
dim = 256
heads = 4
[training]
steps = 7
[parallelism]
pipeline_parallel_degree = 2
num_microbatches = 4
[checkpoint]
folder = ""
TOML

# Text of as many letters as each line says; its end is one more token.
documents() {
  awk '{text = ""; while (length(text) < $1) text = text "the quick brown fox jumps over the lazy dog "
        printf "{\"text\": \"%s\"}\n", substr(text, 1, $1)}'
}
for ((n = 0; n < 400; ++n)); do echo 255; done | documents >"$folder/equal.jsonl"
awk 'BEGIN {srand(1); for (n = 0; n < 600; ++n) {
       z = sqrt(-2 * log(1 - rand())) * cos(6.283185307 * rand()); l = int(exp(5.95 + 1.26 * z))
       print (l < 1 ? 1 : (l > 2047 ? 2047 : l))}}' >"$folder/lengths"
documents <"$folder/lengths" >"$folder/spread.jsonl"

# Tokens per second: the real ones that `sequences` had in the same steps where these are given.
tokens_per_second() { # PROGRAM REAL_TOKENS FLAGS...
  local program=$1 real=$2
  shift 2
  rm -rf "$folder/metrics"
  "$program" train "$folder/run.toml" --metrics.folder="$folder/metrics" "$@" >/dev/null 2>&1
  tail -n +3 "$folder/metrics/metrics.jsonl" | awk -v real="$real" '
    {match($0, /"tokens":[0-9]+/); tokens += substr($0, RSTART + 9, RLENGTH - 9)
     match($0, /"step_time_s":[0-9.e-]+/); seconds += substr($0, RSTART + 14, RLENGTH - 14)}
    END {printf "%.1f\n", (real ? real : tokens) / seconds}'
}
real_tokens() { # FLAGS...
  rm -rf "$folder/metrics"
  "$program" train "$folder/run.toml" --metrics.folder="$folder/metrics" "$@" >/dev/null 2>&1
  tail -n +3 "$folder/metrics/metrics.jsonl" | grep -o '"tokens":[0-9]*' | awk -F: '{sum += $2} END {print sum}'
}
median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

# compare NAME...: runs each by turns; the function NAME prints its tokens per second. Ratios are to the first.
compare() {
  local name round
  for name in "$@"; do : >"$folder/$name"; done
  for ((round = 0; round < rounds; ++round)); do
    for name in "$@"; do "$name" >>"$folder/$name"; done
  done
  local first
  first=$(median <"$folder/$1")
  for name in "$@"; do
    awk -v name="$name" -v is="$(median <"$folder/$name")" -v first="$first" -v all="$(paste -sd ' ' "$folder/$name")" \
      'BEGIN {printf "%-16s %9.0f tokens/s  %.3f   (%s)\n", name, is, is / first, all}'
  done
}

equal=(--data.path="$folder/equal.jsonl" --training.sequence_length=256 --training.global_batch_size=16)
packed_equal() { tokens_per_second "$program" 0 "${equal[@]}" --data.packing=documents; }
old_packed_equal() { tokens_per_second "$old" 0 "${equal[@]}" --data.packing=documents; }
sequences_equal() { tokens_per_second "$program" 0 "${equal[@]}" --data.packing=sequences; }
echo "documents of 256 tokens, 16 per step:"
compare ${old:+old_packed_equal} packed_equal sequences_equal

spread=(--data.path="$folder/spread.jsonl" --training.sequence_length=2048)
real=$(real_tokens "${spread[@]}" --training.global_batch_size=16 --data.packing=sequences)
padded() { tokens_per_second "$program" "$real" "${spread[@]}" --training.global_batch_size=16 --data.packing=stream; }
packed() { tokens_per_second "$program" 0 "${spread[@]}" --training.global_batch_size=4 --data.packing=documents; }
sequences() { tokens_per_second "$program" 0 "${spread[@]}" --training.global_batch_size=16 --data.packing=sequences; }
echo "documents of 1 to 2048 tokens, 16 per step ($((real / 5)) tokens in the mean); packed: 4 rows of 2048:"
compare padded packed sequences
