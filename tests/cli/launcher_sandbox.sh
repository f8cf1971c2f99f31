# For the tests of ./sluice, the launcher: each in a sandbox with a one-file program in place of Sluice
# and, in place of dpkg-query, apt-get, sudo, python3 and nvidia-smi, stand-ins that only note what they
# were asked. Sourced; what sources it defines functions test_* and ends with run_tests "$@".
# shellcheck shell=bash disable=SC2034
set -uo pipefail

checkout=$(readlink -f "${BASH_SOURCE[0]}")
checkout=${checkout%/tests/cli/*}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for name in $(compgen -e | grep -E '^(OMPI|PMI|PMIX|MV2|MPI|PALS|SLURM|SLUICE)_'); do unset "$name"; done

# A checkout in "$box/my clone" (every test runs in a path with a space) and stand-ins in $box/bin.
# Its program prints its folder and arguments; with "status N" it exits with N, with "cat" it copies
# standard input, with "train" it prints the folder of the torch it was built with.
make_sandbox() {
  box=$(mktemp -d -p "$scratch")
  clone="$box/my clone"
  mkdir -p "$clone/src" "$clone/tools" "$clone/cmake" "$box/bin" "$box/home"
  cp "$checkout/sluice" "$checkout/CMakePresets.json" "$clone"
  cp "$checkout/tools/lib.sh" "$checkout/tools/corpus" "$clone/tools"
  cat >"$clone/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(stand_in LANGUAGES CXX)
foreach(name sluice sluice-engine)
  string(REPLACE - _ target ${name})
  add_executable(${target} EXCLUDE_FROM_ALL src/main.cpp)
  target_compile_definitions(${target} PRIVATE TORCH="${SLUICE_ENGINE}:${SLUICE_TORCH_DIR}")
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endforeach()
END
  cat >"$clone/src/main.cpp" <<'END'
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#if __has_include("extra.h")
#include "extra.h"
#else
#define GREETING "here:"
#endif
int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if (verb == "status") return std::atoi(argv[2]);
  if (verb == "cat") {
    for (int c; (c = std::getchar()) != EOF;) std::putchar(c);
    return 0;
  }
  if (verb == "train") return std::puts(TORCH) < 0;
  char folder[4096];
  std::printf(GREETING "%s", getcwd(folder, sizeof folder));
  for (int i = 1; i < argc; ++i) std::printf("|%s", argv[i]);
  std::printf("\n");
}
END
  # $box/missing holds the packages that are not installed.
  : >"$box/missing"
  : >"$box/calls"
  stand_in dpkg-query "grep -qxF -- \"\${@: -1}\" '$box/missing' && exit 1; echo -n installed"
  stand_in dpkg "echo \"dpkg \$*\" >>'$box/calls'"
  stand_in apt-get "cat >/dev/null; echo \"apt-get \$*\" >>'$box/calls'; [[ \$* != *install* ]] || : >'$box/missing'"
  stand_in sudo "echo sudo >>'$box/calls'; [[ \$1 != -* ]] || exit 0; exec \"\$@\""
  # python3 -c looks for an installed torch: $box/installed names its folder; pip makes one.
  stand_in python3 "echo \"python3 \$*\" >>'$box/calls'
case \$* in
  -c*) cat '$box/installed' ;;
  *pip*install*)
    [[ \$* == *--no-deps* ]] || with_cuda=1
    while [[ \$1 != --target ]]; do shift; done; sleep 0.5; make_torch \"\$2\" \$with_cuda ;;
esac"
  # shellcheck disable=SC2016
  stand_in make_torch 'mkdir -p "$1/torch/include/ATen" "$1/torch/lib"
touch "$1/torch/include/ATen/ATen.h" "$1/torch/lib/"libtorch_{cpu,cuda}.so
[[ -z $2 ]] || for part in cudnn/lib/libcudnn.so.9 cu13/lib/libcu{dart,blas}.so.13; do
  mkdir -p "$1/nvidia/${part%/*}" && touch "$1/nvidia/$part"
done'
  # No GPU, whatever this machine has.
  stand_in nvidia-smi "exit 9"
  torch=$box/home/.cache/sluice/torch-2.11.0
  # The compiler waits for as long as $box/hold is there.
  stand_in c++ "[[ \$* != *-c*main.cpp* ]] || touch '$box/compiling'
while [[ \$* == *-c*main.cpp* && -e '$box/hold' ]]; do sleep 0.05; done
exec /usr/bin/c++ \"\$@\""
  chmod -R a+rwX "$scratch"
  unset XDG_CACHE_HOME CUDACXX
  export PATH="$box/bin:$PATH" CXX="$box/bin/c++" HOME="$box/home"
}

stand_in() {
  printf '#!/bin/bash\n%s\n' "$2" >"$box/bin/$1"
  chmod +x "$box/bin/$1"
}

# run COMMAND...: leaves the exit status in $status, what was printed in $out and $err.
run() {
  status=0
  "$@" >"$box/out" 2>"$box/err" || status=$?
  out=$(<"$box/out")
  err=$(<"$box/err")
}

as_nobody() {
  if ((EUID == 0)); then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi
}

wait_for() {
  local tries
  for ((tries = 0; tries < 200; tries++)); do
    [[ ! -e $1 ]] || return 0
    sleep 0.05
  done
  fail "$1 never came"
}

fail() {
  printf '    %s\n' "$*"
  [[ -z ${err:-} ]] || printf "    stderr: %s\n" "$err"
  exit 1
}
expect_status() { [[ $status == "$1" ]] || fail "exit status $status, expected $1"; }
expect_out() { [[ $out == "$1" ]] || fail "standard output '$out', expected '$1'"; }
expect_in() { [[ $1 == *"$2"* ]] || fail "'$2' is not in '$1'"; }
expect_not_in() { [[ $1 != *"$2"* ]] || fail "'$2' is in '$1'"; }

# Expects that the package is named with the command to type, and that nothing was called.
expect_refusal() {
  expect_status 2
  expect_out ""
  expect_in "$err" "missing Debian packages: cmake"
  expect_in "$err" "$1"
  expect_in "$err" "apt-get install --no-install-recommends cmake"
  expect_not_in "$(<"$box/calls")" apt-get
}

# run_tests [PATTERN]: those whose names match.
run_tests() {
  local name num_passed=0 num_failed=0
  for name in $(compgen -A function test_ | grep -E "${1:-}"); do
    (
      set -e
      make_sandbox
      "$name"
    )
    # Not `if (...)`: there bash ignores set -e.
    # shellcheck disable=SC2181
    if (($? == 0)); then
      echo "ok      ${name#test_}"
      num_passed=$((num_passed + 1))
    else
      echo "FAILED  ${name#test_}"
      num_failed=$((num_failed + 1))
    fi
  done
  echo "launcher: $num_passed passed, $num_failed failed"
  ((num_failed == 0 && num_passed > 0))
}
