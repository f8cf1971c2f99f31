#!/usr/bin/env bash
# examples/flexsp/run.sh [BATCHES]: what FlexSP's plans bring in its cost model, each number beside the published one.
#
# Prints one report (README.md says how to read it). A row is a mean over BATCHES batches of 512 sequences (default 3:
# half a minute; those of 20 hardly move). SLUICE names the program, ./sluice of this checkout unless given.
set -euo pipefail
here=$(readlink -f "${BASH_SOURCE[0]%/*}")
sluice=${SLUICE:-$here/../../sluice}
"$sluice" batch --help >/dev/null # builds it where that is needed
exec python3 "$here/report.py" "$sluice" "${1:-3}"
