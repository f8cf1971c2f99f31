#!/usr/bin/env bash
# Trains on the machines of a hostfile: examples/machines/mpirun.sh CONFIG [--section.key=value...]
#
# Run it in the folder of the configuration, on a machine that reaches the others by ssh without a password. NETWORK is
# the network that the machines share, such as 10.0.0.0/24. Without it, OpenMPI tries every interface of every machine.
# SIGTERM, SIGUSR1 or SIGHUP to this script, or Ctrl-C, finish the step, save, and end with exit code 143.
set -uo pipefail
here=$(readlink -f "${BASH_SOURCE[0]%/*}")
network=()
if [[ ${NETWORK:-} ]]; then
  network=(--mca btl_tcp_if_include "$NETWORK" --mca oob_tcp_if_include "$NETWORK")
fi
# A process group of its own: otherwise Ctrl-C would also reach mpirun, which kills the ranks a second later.
set -m
mpirun --hostfile "${HOSTFILE:-$here/hostfile}" --map-by slot --bind-to none --mca btl tcp,vader,self "${network[@]}" \
  "${SLUICE:-$here/../../sluice}" train "$@" --comm.backend=mpi &
mpirun=$!
trap 'kill -USR1 $mpirun' TERM INT USR1 HUP
# A signal ends the first wait, not the ranks.
while wait $mpirun; code=$?; kill -0 $mpirun 2>/dev/null; do :; done
exit $code
