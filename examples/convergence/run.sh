#!/usr/bin/env bash
# examples/convergence/run.sh [--preset headline] [--out FOLDER] [--jobs N]: does asynchronous training converge as well?
#
# Trains every run of the preset, one per core, and writes FOLDER/report.md with its pictures. Interrupted, it goes on
# where it was when it is started again. README.md says what is trained and how to read the report.
# `--help` lists the options. SLUICE names the program, ./sluice of this checkout unless given.
set -euo pipefail
here=$(readlink -f "${BASH_SOURCE[0]%/*}")
root=$here/../..
if [[ " $* " != *' --help '* && " $* " != *' -h '* && -z ${SLUICE:-} ]]; then
  "$root/sluice" train --build
  "$root/sluice" schedule --help >/dev/null
fi
export SLUICE=${SLUICE:-$root/build/engine/bin/sluice-engine} SLUICE_CORPUS=$root/tools/corpus
exec python3 "$here/study.py" "$@"
