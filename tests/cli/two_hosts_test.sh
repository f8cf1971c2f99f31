#!/usr/bin/env bash
# two_hosts_test.sh ENGINE: training over two "hosts" under one mpirun. A host is a network namespace with an
# address and a host name of its own; one link joins the two, and mpirun starts its daemon on the second through an agent in place of ssh.
# Exits with 77, and says why, where the machine does not let us make such hosts.
set -uo pipefail
export LC_ALL=C
engine=$1
root=$(readlink -f "${BASH_SOURCE[0]%/*}/../..")
for name in $(compgen -e | grep -E '^(OMPI|PMI|PMIX|SLURM|SLUICE)_'); do unset "$name"; done
export OMP_NUM_THREADS=1

skip() {
  echo "skipped: $*"
  exit 77
}
[[ $(id -u) == 0 ]] || skip "network namespaces need root"
for program in ip unshare timeout mpirun; do
  command -v "$program" >/dev/null || skip "there is no $program"
done

a=sluice-$$-a b=sluice-$$-b
# A net of its own for each run, so that runs at the same time do not meet: 10.213.X.0/30.
net=10.213.$(($$ % 250))
folder=$(mktemp -d)
clean_up() {
  local host
  for host in $a $b; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$host" 2>/dev/null
  done
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 1' INT TERM
make_hosts() {
  ip netns add $a && ip netns add $b && ip link add link0 netns $a type veth peer name link0 netns $b &&
    ip -n $a addr add $net.1/30 dev link0 && ip -n $b addr add $net.2/30 dev link0
}
make_hosts 2>"$folder/why" || skip "network namespaces cannot be made: $(<"$folder/why")"
for host in $a $b; do
  ip -n "$host" link set lo up && ip -n "$host" link set link0 up
done
ip netns exec $a unshare --uts hostname host-a 2>"$folder/why" || skip "host names cannot be set: $(<"$folder/why")"
cd "$folder" || exit 1

fail() {
  echo "FAILED: $*"
  for file in out err; do
    echo "--- $file"
    cat $file
  done
  exit 1
}

# mpirun calls it as it would call ssh: the host, then the words of a command for a shell there.
cat >agent <<END
#!/bin/sh
[ "\$1" = $net.2 ] || exit 3
shift
exec ip netns exec $b unshare --uts sh -c 'hostname host-b; exec sh -c "\$1"' sh "\$*"
END
chmod +x agent
for ((n = 0; n < 300; ++n)); do
  echo "line $((n % 7)) of a small text that repeats itself"
done >corpus.txt
cat >run.toml <<'END'
[model]
layers = 4
dim = 32
heads = 2
[data]
path = "corpus.txt"
format = "text"
[training]
steps = 3
sequence_length = 32
global_batch_size = 8
[parallelism]
pipeline_parallel_degree = 2
num_microbatches = 4
[checkpoint]
folder = ""
END

# What each rank runs.
cat >program <<END
#!/bin/sh
echo "rank \$OMPI_COMM_WORLD_RANK on \$(hostname)" >&2
exec "$engine" "\$@"
END
chmod +x program
printf '%s slots=1\n' $net.1 $net.2 >hostfile
export HOSTFILE=$folder/hostfile NETWORK=$net.0/30 SLUICE=$folder/program OMPI_MCA_plm_rsh_agent=$folder/agent
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# train FLAGS...: the example script on the first host, for both; rank 0 is there. Prints and errors to out and err.
train() {
  exec ip netns exec $a unshare --uts sh -c 'hostname host-a; exec "$@"' sh \
    timeout --foreground 100 "$root/examples/machines/mpirun.sh" run.toml "$@" >out 2>err
}
wait_for_step() {
  for ((wait = 0; wait < 600; ++wait)); do
    grep -qs 'step: *2 ' out && return
    sleep 0.1
  done
  fail "no step"
}
losses() { grep -o 'step: *[0-9]* *loss: *[0-9.]*' "$1"; }

echo "two hosts train three steps"
(train) || fail "exit code $?"
for line in "rank 0 on host-a" "rank 1 on host-b"; do
  grep -q "$line" err || fail "not there: $line"
done
[[ $(losses out | wc -l) == 3 ]] || fail "not three steps"
"$engine" train run.toml --metrics.folder=threads >threads.out 2>&1 || fail "threads: $(<threads.out)"
[[ $(losses out) == "$(losses threads.out)" ]] || fail "not the losses of threads: $(losses threads.out)"

echo "SIGTERM to the script finishes the step, saves on both hosts and gives 143"
rm -rf metrics out
train --training.steps=1000000 --checkpoint.folder=saved &
wait_for_step
kill -TERM $!
wait $!
code=$?
[[ $code == 143 ]] || fail "exit code $code"
[[ $(find saved -name 'rank-*.safetensors' | wc -l) == 2 ]] || fail "two shards are not there: $(find saved)"

echo "a link that goes down is told by the rank behind it"
rm -rf metrics out
train --training.steps=1000000 &
wait_for_step
ip -n $b link set link0 down
# mpirun itself waits long for a daemon that no longer answers; the ranks do not.
for ((wait = 0; wait < 200; ++wait)); do
  ranks=$(for host in $a $b; do ip netns pids "$host"; done | xargs -r -n 1 -I PID cat /proc/PID/comm 2>/dev/null |
    grep -c '^sluice-engine')
  [[ $ranks == 0 ]] && break
  sleep 0.1
done
[[ $ranks == 0 ]] || fail "$ranks ranks are still there"
grep -q 'sluice: rank 1 failed: no sign of life' err || fail "rank 1 is not named"
echo passed
