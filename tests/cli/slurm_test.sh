#!/usr/bin/env bash
# Which exit codes send a job of examples/machines/slurm.sbatch back into the queue. srun and scontrol are stand-ins.
set -uo pipefail
export LC_ALL=C
script=$(readlink -f "${BASH_SOURCE[0]%/*}/../../examples/machines/slurm.sbatch")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
# shellcheck disable=SC2016 # the stand-in expands them
printf '#!/bin/sh\necho "$*" >started\nexit $CODE\n' >srun
# shellcheck disable=SC2016 # the stand-in expands them
printf '#!/bin/sh\necho "$*" >>queued\n' >scontrol
chmod +x srun scontrol
export PATH=$folder:$PATH SLURM_JOB_ID=7

fail() {
  echo "FAILED: $*"
  exit 1
}

# expect CODE WANTED [RESTARTS]: a job that ends with CODE is queued again, or not.
expect() {
  rm -f queued started
  CODE=$1 SLURM_RESTART_COUNT=${3:-0} bash "$script" run.toml --training.steps=5 >out 2>&1
  local code=$? queued=no
  [[ $code == "$1" ]] || fail "exit code $code instead of $1: $(<out)"
  [[ $(<started) == *" ./sluice train run.toml --training.steps=5 "* ]] || fail "started $(<started)"
  [[ ! -e queued ]] || queued=$(<queued)
  [[ $queued == "$2" ]] || fail "after exit code $1 and ${3:-0} restarts: queued is '$queued', not '$2'"
}

for code in 143 75 137 139; do
  expect $code "requeue 7"
  expect $code no 50
done
for code in 0 1 2 3 17 70; do
  expect $code no
done
echo passed
