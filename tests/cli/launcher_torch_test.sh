#!/usr/bin/env bash
# Tests of ./sluice, the launcher: which torch it takes, and when it fetches one.
# launcher_torch_test.sh [PATTERN]: runs the tests whose names match.
# shellcheck source=tests/cli/launcher_sandbox.sh disable=SC2154
source "$(dirname "${BASH_SOURCE[0]}")/launcher_sandbox.sh"

test_train_fetches_torch_once_for_every_checkout() {
  run "$clone/sluice" train
  expect_status 0
  expect_out "ON:$torch"
  expect_in "$err" "installing torch 2.11.0 into $torch"
  expect_in "$(<"$box/calls")" " torch==2.11.0 "
  [[ $(ls -A "$torch") == torch && ! -e $torch.part ]] || fail "left behind: $(ls -A "$torch"*)"
  rm -rf "$clone/build"
  : >"$box/calls"
  run "$clone/sluice" train
  expect_out "ON:$torch"
  expect_not_in "$(<"$box/calls")" pip
  run "$clone/sluice" train
  [[ -z $err ]] || fail "a second run must print nothing"
}

test_installed_torch_is_used() {
  make_torch "$box/my site"
  echo "$box/my site" >"$box/installed"
  run "$clone/sluice" train
  expect_out "ON:$box/my site"
  make_torch "$box/other"
  SLUICE_TORCH_DIR="$box/other" run "$clone/sluice" train
  expect_out "ON:$box/other"
  expect_not_in "$(<"$box/calls")" pip
  SLUICE_TORCH_DIR="$box" run "$clone/sluice" train
  expect_status 2
  expect_in "$err" "SLUICE_TORCH_DIR is $box:"
}

test_torch_that_has_gone_is_fetched_again() {
  run "$clone/sluice" train
  rm -r "$torch/torch/lib"
  run "$clone/sluice" train
  expect_out "ON:$torch"
  expect_in "$err" "installing torch"
}

test_pure_commands_never_touch_torch() {
  local command
  for command in --version --help schedule check simulate compare data partition \
    'train a.toml --dry-run' 'train --print-config a.toml' 'train --help' 'help train'; do
    rm -rf "$clone/build"
    # shellcheck disable=SC2086
    SLUICE_TORCH_DIR=/no/torch run "$clone/sluice" $command
    expect_status 0
    [[ ! -d $clone/build/engine ]] || fail "$command built the engine"
  done
  expect_not_in "$(<"$box/calls")" python3
  [[ ! -e $torch ]] || fail "torch was fetched"
}

test_engine_commands_get_the_engine() {
  local command commands
  commands=$(grep -oP '^ *\{+"\K[a-z]+(?=", ")' "$checkout/src/cli/engine_absent.cpp")
  expect_in "$commands" generate
  for command in train 'train --build' 'train a.toml --build --dry-run' $commands; do
    # shellcheck disable=SC2086
    run "$clone/sluice" $command
    expect_status 0
    [[ ! -d $clone/build/release ]] || fail "$command built the pure program"
  done
}

# Expects that torch and the package are named, and that nothing was called.
expect_refusal_of_torch() {
  expect_refusal "$1"
  expect_in "$err" "missing torch 2.11.0: nothing is installed"
  expect_not_in "$(<"$box/calls")" pip
}

test_train_that_may_not_install_lists_torch_and_packages() {
  echo cmake >"$box/missing"
  run "$clone/sluice" train --no-install
  expect_refusal_of_torch "--no-install"
  run env OMPI_COMM_WORLD_RANK=0 "$clone/sluice" train
  expect_refusal_of_torch "launcher"
  : >"$box/missing"
  run "$clone/sluice" --no-install train
  expect_status 2
  expect_in "$err" "missing torch 2.11.0: nothing is installed with --no-install"
  expect_not_in "$err" "Debian"
}

test_failed_fetch_of_torch_is_temporary_and_leaves_nothing() {
  stand_in python3 "[[ \$* != *install* ]] || { make_torch '$torch.part'; echo 'ERROR: no network'; exit 1; }"
  run "$clone/sluice" train
  expect_status 75
  expect_out ""
  expect_in "$err" "installing torch failed: no network; check network"
  [[ -z $(ls "${torch%/*}") ]] || fail "left behind: $(ls "${torch%/*}")"
}

test_several_checkouts_at_once_fetch_torch_once() {
  local i pids=()
  cp -r "$clone" "$box/second"
  for i in "$clone" "$box/second"; do
    "$i/sluice" train >"$i/out" 2>"$i/err" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || fail "exit status $?"; done
  for i in "$clone" "$box/second"; do
    [[ $(<"$i/out") == "ON:$torch" ]] || fail "printed '$(<"$i/out")'"
  done
  [[ $(grep -c 'pip install' "$box/calls") == 1 ]] || fail "calls: $(<"$box/calls")"
}

# A machine with a GPU and all it takes to build for it; the torch that is then fetched.
make_gpu() {
  stand_in nvidia-smi "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'"
  stand_in nvcc "exit 1"
  cuda_torch=$torch-cuda
}

test_on_a_gpu_torch_with_cuda_is_fetched_once_for_every_checkout() {
  make_gpu
  make_torch "$torch"
  run "$clone/sluice" train
  expect_status 0
  expect_out "ON:$cuda_torch"
  expect_in "$err" "installing torch 2.11.0 with CUDA into $cuda_torch (once; about 4.7 GB"
  expect_in "$(<"$box/calls")" " torch==2.11.0"
  expect_not_in "$(<"$box/calls")" --no-deps
  rm -rf "$clone/build"
  : >"$box/calls"
  run "$clone/sluice" train
  expect_out "ON:$cuda_torch"
  expect_not_in "$(<"$box/calls")" pip
}

test_on_a_gpu_python3s_torch_is_used_if_it_has_cuda() {
  make_gpu
  make_torch "$box/site" 1
  echo "$box/site" >"$box/installed"
  run "$clone/sluice" train
  expect_out "ON:$box/site"
  expect_not_in "$(<"$box/calls")" pip
  rm -r "$clone/build" "$box/site/nvidia/cu13" # that of another CUDA
  run "$clone/sluice" train
  expect_out "ON:$cuda_torch"
}

test_on_a_gpu_the_users_torch_is_the_users_choice() {
  make_gpu
  make_torch "$box/other"
  SLUICE_TORCH_DIR="$box/other" run "$clone/sluice" train
  expect_out "ON:$box/other"
  expect_not_in "$(<"$box/calls")" pip
}

test_on_a_gpu_torch_that_may_not_be_fetched_is_named() {
  make_gpu
  make_torch "$torch"
  run "$clone/sluice" train --no-install
  expect_status 2
  expect_out ""
  expect_in "$err" "missing torch 2.11.0 with CUDA: nothing is installed with --no-install"
  expect_in "$err" "4.7 GB go to $cuda_torch), or set SLUICE_TORCH_DIR"
}

test_without_nvcc_or_a_gpu_torch_is_that_of_the_cpu() {
  make_gpu
  stand_in nvidia-smi "echo 'No devices found.'"
  run "$clone/sluice" train
  expect_out "ON:$torch"
  expect_in "$(<"$box/calls")" --no-deps
  make_gpu
  rm -r "$clone/build" "$box/bin/nvcc"
  sed -i "s|/usr/local/cuda|$box/cuda|" "$clone/tools/lib.sh"
  PATH=$box/bin:/usr/bin:/bin run "$clone/sluice" train
  expect_out "ON:$torch"
  [[ ! -e $cuda_torch ]] || fail "torch with CUDA was fetched"
}

test_nvcc_is_found_where_cmake_finds_it() {
  make_gpu
  rm "$box/bin/nvcc"
  sed -i "s|/usr/local/cuda|$box/cuda|" "$clone/tools/lib.sh"
  CUDACXX=/some/nvcc PATH=$box/bin:/usr/bin:/bin run "$clone/sluice" train
  expect_out "ON:$cuda_torch"
  rm -r "$clone/build" "$cuda_torch"
  mkdir -p "$box/cuda/bin"
  cp /bin/true "$box/cuda/bin/nvcc"
  PATH=$box/bin:/usr/bin:/bin run "$clone/sluice" train
  expect_out "ON:$cuda_torch"
}

run_tests "$@"
