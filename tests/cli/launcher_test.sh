#!/usr/bin/env bash
# Tests of ./sluice, the launcher: builds, packages, the text of the quickstart.
# launcher_test.sh [PATTERN]: runs the tests whose names match.
# shellcheck source=tests/cli/launcher_sandbox.sh disable=SC2154
source "$(dirname "${BASH_SOURCE[0]}")/launcher_sandbox.sh"

test_first_run_builds_and_shows_its_progress_on_standard_error_only() {
  run "$clone/sluice" one "two three" ""
  expect_status 0
  expect_out "here:$PWD|one|two three|"
  expect_in "$err" "[2/2]"
}

test_second_run_is_quiet_and_starts_at_once() {
  run "$clone/sluice"
  run "$clone/sluice" again
  expect_status 0
  expect_out "here:$PWD|again"
  [[ -z $err ]] || fail "a second run must print nothing"
  local start=${EPOCHREALTIME/[.,]/} i
  for i in {1..20}; do "$clone/sluice" >/dev/null; done
  echo "    $(((${EPOCHREALTIME/[.,]/} - start) / 20000)) ms for a run that has nothing to build"
}

test_second_run_calls_neither_cmake_nor_dpkg() {
  run "$clone/sluice"
  for tool in cmake ninja dpkg-query apt-get; do stand_in $tool "echo $tool >>'$box/calls'"; done
  run "$clone/sluice"
  expect_status 0
  [[ ! -s $box/calls ]] || fail "called: $(<"$box/calls")"
}

test_exit_status_and_standard_input_are_the_programs() {
  run "$clone/sluice" status 3
  expect_status 3
  rm -rf "$clone/build"
  echo cmake >"$box/missing"
  run "$clone/sluice" cat <<<"line"
  expect_out "line"
}

test_runs_from_another_folder_through_a_symbolic_link() {
  ln -s "$clone/sluice" "$box/link"
  ln -s link "$box/link2"
  cd "$box/bin"
  run ../link2 x
  expect_out "here:$box/bin|x"
}

test_changed_added_and_deleted_sources_are_built_anew() {
  run "$clone/sluice"
  echo '#define GREETING "there:"' >"$clone/src/extra.h"
  touch -d '2001-01-01' "$clone/src/extra.h"
  touch "$clone/src/main.cpp"
  run "$clone/sluice"
  expect_out "there:$PWD"
  sed -i s/there/where/ "$clone/src/extra.h"
  run "$clone/sluice"
  expect_out "where:$PWD"
  rm "$clone/src/extra.h"
  run "$clone/sluice"
  expect_out "here:$PWD"
}

test_moved_checkout_builds_again() {
  run "$clone/sluice"
  mv "$clone" "$box/moved"
  sed -i s/here:/moved:/ "$box/moved/src/main.cpp"
  run "$box/moved/sluice"
  expect_out "moved:$PWD"
}

test_several_at_once_build_once() {
  local i pids=()
  touch "$box/hold"
  for i in 1 2 3; do
    "$clone/sluice" "$i" >"$box/out$i" 2>"$box/err$i" &
    pids+=($!)
  done
  wait_for "$box/compiling"
  sleep 0.3
  rm "$box/hold"
  for i in "${pids[@]}"; do wait "$i" || fail "exit status $?"; done
  for i in 1 2 3; do
    [[ $(<"$box/out$i") == "here:$PWD|$i" ]] || fail "run $i printed '$(<"$box/out$i")'"
  done
  [[ $(cat "$box"/err? | grep -c building) == 1 ]] || fail "expected one build, got: $(cat "$box"/err?)"
  [[ $(cat "$box"/err? | grep -c waiting) == 2 ]] || fail "expected two waiting: $(cat "$box"/err?)"
}

# ./test builds presets of its own; what is up to date in another one does not wait for it.
test_nothing_to_build_does_not_wait_for_a_running_test() {
  run "$clone/sluice"
  cp "$checkout/test" "$clone"
  local tool pid
  for tool in check_layers check_layers_test format; do
    printf '#!/bin/sh\n' >"$clone/tools/$tool"
    chmod +x "$clone/tools/$tool"
  done
  cat >>"$clone/CMakeLists.txt" <<'END'
if(SLUICE_TESTS)
  add_executable(tests src/main.cpp)
  target_compile_definitions(tests PRIVATE TORCH="")
endif()
END
  run "$clone/sluice"
  touch "$box/hold"
  rm -f "$box/compiling"
  "$clone/test" >/dev/null 2>&1 &
  pid=$!
  wait_for "$box/compiling"
  kill -0 "$pid" || fail "./test ended early"
  # Its status changes and its content does not, as when a branch is left and returned to.
  chmod u+x "$clone/src/main.cpp"
  run timeout 20 "$clone/sluice" at once
  kill -0 "$pid" || fail "./test did not hold its lock to the end"
  rm "$box/hold"
  wait "$pid" || true # it has no tests to run
  expect_status 0
  expect_out "here:$PWD|at|once"
  expect_not_in "$err" "waiting"
}

# interrupt SIGNAL WHOM: starts a build that hangs, sends the signal to it or to all it started.
interrupt() {
  touch "$box/hold"
  rm -f "$box/compiling"
  # A process group of its own, with the signals as in a terminal, whatever we were started with.
  set -m
  env --default-signal=INT,TERM "$clone/sluice" >"$box/out" 2>"$box/err" &
  set +m
  local pid=$! status=0
  wait_for "$box/compiling"
  case $2 in
    all) kill "-$1" -- "-$pid" ;;
    launcher) kill "-$1" "$pid" ;;
  esac
  wait "$pid" 2>/dev/null || status=$?
  ((status > 2)) || fail "interrupted with $1, yet its exit status is $status"
  rm "$box/hold"
}

test_interrupted_build_recovers() {
  local signal whom greeting=here
  for signal in INT TERM KILL; do
    for whom in all launcher; do
      # Ctrl-C reaches everything in the terminal.
      [[ $signal$whom != INTlauncher ]] || continue
      rm -rf "$clone/build"
      interrupt $signal $whom
      run timeout 60 "$clone/sluice"
      expect_out "$greeting:$PWD"
      # And where the program of an earlier build is there to be mistaken for the new one.
      sed -i "s/$greeting:/$signal$whom:/" "$clone/src/main.cpp"
      greeting=$signal$whom
      interrupt $signal $whom
      run timeout 60 "$clone/sluice"
      expect_out "$greeting:$PWD"
    done
  done
}

test_half_written_object_is_not_trusted() {
  interrupt KILL all
  : >"$clone/build/release/CMakeFiles/sluice.dir/src/main.cpp.o"
  run "$clone/sluice"
  expect_out "here:$PWD"
}

test_failed_build_shows_the_compiler_and_the_log_and_recovers() {
  run "$clone/sluice"
  echo 'int broken = "text";' >>"$clone/src/main.cpp"
  run "$clone/sluice"
  expect_status 2
  expect_out ""
  expect_in "$err" "main.cpp"
  expect_in "$err" "int broken"
  expect_in "$err" "$clone/build/release.log"
  run "$clone/sluice"
  expect_status 2
  sed -i '$d' "$clone/src/main.cpp"
  run "$clone/sluice"
  expect_status 0
}

test_failed_configuration_stops_before_the_build() {
  echo 'find_package(no_such_package REQUIRED)' >>"$clone/CMakeLists.txt"
  run "$clone/sluice"
  expect_status 2
  expect_in "$err" "no_such_package"
  expect_not_in "$err" "ninja: error"
}

test_folder_that_cannot_be_written_is_one_clear_line() {
  chmod a-w "$clone"
  ((EUID != 0)) || chown 0 "$clone"
  run as_nobody "$clone/sluice"
  chmod u+w "$clone"
  expect_status 2
  expect_in "$err" "cannot write to $clone/build"
}

test_missing_packages_are_installed_first() {
  printf '%s\n' cmake libfmt-dev >"$box/missing"
  run "$clone/sluice" x
  expect_status 0
  expect_out "here:$PWD|x"
  expect_in "$err" "installing cmake libfmt-dev"
  local calls
  calls=$(grep apt-get "$box/calls")
  expect_in "$calls" $' update\n'
  expect_in "$calls" " install -y --no-install-recommends cmake libfmt-dev"
}

test_no_install_lists_what_is_missing() {
  echo cmake >"$box/missing"
  run "$clone/sluice" --no-install --version
  expect_refusal "--no-install"
  run "$clone/sluice" schedule --no-install
  expect_refusal "--no-install"
  SLUICE_NO_INSTALL=1 run "$clone/sluice"
  expect_refusal "--no-install"
}

test_no_install_is_not_passed_on() {
  run "$clone/sluice" a --no-install b
  expect_out "here:$PWD|a|b"
}

test_under_a_launcher_nothing_is_installed() {
  echo cmake >"$box/missing"
  local variable
  for variable in OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID SLURM_STEP_ID; do
    run env "$variable=0" "$clone/sluice"
    expect_refusal "launcher"
  done
}

test_settings_of_mpi_are_not_a_launcher() {
  echo cmake >"$box/missing"
  run env OMPI_MCA_btl=self PMIX_MCA_gds=hash "$clone/sluice"
  expect_status 0
}

test_user_with_sudo_installs() {
  echo cmake >"$box/missing"
  run as_nobody "$clone/sluice"
  expect_status 0
  [[ $(grep -A1 sudo "$box/calls") == *apt-get*install* ]] || fail "calls: $(<"$box/calls")"
}

test_user_without_sudo_is_told_what_to_type() {
  echo cmake >"$box/missing"
  stand_in sudo "exit 1"
  run as_nobody "$clone/sluice"
  expect_refusal "root or sudo"
  expect_in "$err" "sudo apt-get install"
}

test_failed_installation_is_temporary_and_names_the_cause() {
  echo cmake >"$box/missing"
  stand_in apt-get "[[ \$* != *update* ]] || { echo 'W: Failed to fetch the list: no network'; exit 0; }
echo 'E: Unable to locate package cmake'; exit 100"
  run "$clone/sluice"
  expect_status 75
  expect_out ""
  expect_in "$err" "installing failed: Failed to fetch the list: no network; check network"
}

# A configuration that trains on a text which is not there, and a stand-in for the program bible.
make_corpus_config() {
  mkdir "$box/run"
  cd "$box/run"
  printf '[model]\nlayers = 2\n[data]\npath = "some where/kjv.txt"\n' >quickstart.toml
  stand_in bible "echo \"bible \$*\" >>'$box/calls'; yes 'Ge1:1 In the beginning' | head -n ${1:-31102}"
}

test_train_makes_the_corpus_of_its_configuration_once() {
  make_corpus_config
  echo bible-kjv >"$box/missing"
  run "$clone/sluice" train quickstart.toml
  expect_status 0
  expect_out "ON:$torch"
  expect_in "$(<"$box/calls")" " install -y --no-install-recommends bible-kjv"
  [[ $(uniq "some where/kjv.txt") == "In the beginning" ]] || fail "wrote $(head -c 80 some*/kjv.txt)"
  [[ $(ls "some where") == kjv.txt ]] || fail "left behind: $(ls "some where")"
  : >"$box/calls"
  run "$clone/sluice" train quickstart.toml
  [[ -z $err && ! -s $box/calls ]] || fail "made again: $(<"$box/calls")"
}

test_no_corpus_is_made_where_it_is_not_read() {
  make_corpus_config
  echo bible-kjv >"$box/missing"
  local flag
  for flag in --data.path=mine.txt --dry-run --print-config --help; do
    run "$clone/sluice" train quickstart.toml $flag
    expect_status 0
  done
  run "$clone/sluice" train --no-install other.toml
  expect_status 0
  expect_not_in "$(<"$box/calls")" bible
}

test_corpus_that_may_not_be_installed_is_named() {
  make_corpus_config
  run "$clone/sluice" train --build
  echo bible-kjv >"$box/missing"
  : >"$box/calls"
  run "$clone/sluice" train --no-install quickstart.toml
  expect_status 2
  expect_out ""
  expect_in "$err" "missing Debian packages: bible-kjv"
  run env OMPI_COMM_WORLD_RANK=0 "$clone/sluice" train quickstart.toml
  expect_status 2
  expect_in "$err" "apt-get install --no-install-recommends bible-kjv"
  expect_not_in "$(<"$box/calls")" apt-get
}

test_half_a_corpus_is_not_kept() {
  make_corpus_config 100
  run "$clone/sluice" train quickstart.toml
  expect_status 75
  expect_out ""
  expect_in "$err" "100 of 31102 verses"
  [[ -z $(ls "some where") ]] || fail "left behind: $(ls "some where")"
}

run_tests "$@"
