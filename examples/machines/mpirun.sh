#!/usr/bin/env bash
# Training over the machines of a hostfile: examples/machines/mpirun.sh CONFIG [--section.key=value...]
#
# Run it where the configuration is, on a machine that reaches the others by ssh without a password. NETWORK is the
# network that the machines share, as in 10.0.0.0/24; without it OpenMPI tries every interface of every machine.
# SIGTERM, SIGUSR1 or SIGHUP to this script, or Ctrl-C: the ranks finish the step, save it and exit with 143.
set -uo pipefail
here=$(readlink -f "${BASH_SOURCE[0]%/*}")
network=()
if [[ ${NETWORK:-} ]]; then
  network=(--mca btl_tcp_if_include "$NETWORK" --mca oob_tcp_if_include "$NETWORK")
fi
# In a group of its own, or a Ctrl-C would reach mpirun as well, which then kills the ranks a second later.
set -m
mpirun --hostfile "${HOSTFILE:-$here/hostfile}" --map-by slot --bind-to none --mca btl tcp,vader,self "${network[@]}" \
  "${SLUICE:-$here/../../sluice}" train "$@" --comm.backend=mpi &
mpirun=$!
trap 'kill -USR1 $mpirun' TERM INT USR1 HUP
# A signal ends the first wait and not the ranks.
while wait $mpirun; code=$?; kill -0 $mpirun 2>/dev/null; do :; done
exit $code
