#!/usr/bin/env bash
# The study of examples/convergence, with its smallest preset: killed three times it ends as if it had not been; logs
# give the same report again; what is wrong gets one line. SLUICE names the program.
set -euo pipefail

root=$(readlink -f "${BASH_SOURCE[0]%/*}/../..")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
# Docs are text, too.
cat "$root"/docs/[a-f]*.md >text
study() { "$root/examples/convergence/run.sh" --preset smoke --data text --jobs 2 "$@"; }
failed=0
expect() { # WHAT COMMAND...
  local what=$1
  shift
  if "$@"; then echo "ok      $what"; else echo "FAILED  $what" && failed=1; fi
}
# refused CODE WORDS ARGUMENTS...: one line with these words.
refused() {
  local code=$1 words=$2 got=0
  shift 2
  study "$@" >out 2>&1 || got=$?
  [[ $got == "$code" && $(wc -l <out) == 1 && $(<out) == *"$words"* ]] || { cat out && false; }
}
# What was learnt, without what was timed.
losses() {
  python3 -c 'import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("runs/*/result.json")):
    log = json.loads(path.read_text())
    del log["seconds_per_update"]
    print(json.dumps(log, sort_keys=True))' "$1"
}

study --out straight >/dev/null
expect "the_report_has_a_verdict" grep -q "confidence" straight/report.md
expect "pictures_are_drawn" grep -q "</svg>" straight/curves.svg straight/differences.svg

killed=0
for results in 3 9 16; do
  exec "$root/examples/convergence/run.sh" --preset smoke --data text --jobs 2 --out killed >/dev/null 2>&1 &
  pid=$!
  for ((n = 0; n < 600; ++n)); do
    found=(killed/runs/*/result.json)
    ((${#found[@]} < results)) || [[ ! -e ${found[0]} ]] || break
    kill -0 $pid 2>/dev/null || break
    sleep 0.05
  done
  kill -9 $pid 2>/dev/null && killed=$((killed + 1))
  wait $pid 2>/dev/null || true
done
expect "it_was_killed_three_times" test $killed = 3
expect "a_part_of_the_runs_is_no_report" refused 2 "have not been made" --out killed --report-only
study --out killed >/dev/null
expect "a_killed_study_ends_as_one_that_was_not" cmp <(losses straight) <(losses killed)

cp straight/report.md before.md
study --out straight --report-only >/dev/null
expect "the_same_logs_give_the_same_report" cmp before.md straight/report.md

expect "an_unknown_preset_is_named" refused 2 "needs one of headline, full, smoke" --preset nosuch --out x
expect "other_data_is_another_study" refused 3 "data_sha256" --out straight --data before.md
expect "a_folder_of_something_else_is_kept" refused 2 "is not empty" --out .
result=$(echo straight/runs/methods_amdp_*/result.json)
sed -i 's/"steps": 12/"steps": 13/' "$result"
expect "a_log_of_another_run_is_named" refused 3 "of another version" --out straight --report-only
sed -i 's/"steps": 13/"steps": 12/; s/--training.max_norm=1.0/--training.max_norm=2.0/' "$result"
expect "a_log_of_other_flags_is_named" refused 3 "of another version" --out straight --report-only
sed -i 's/"format": 1/"format": 0/' straight/study.json
expect "logs_of_another_version_are_named" refused 3 "format 0" --out straight
exit $failed
