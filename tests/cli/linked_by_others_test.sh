#!/usr/bin/env bash
# A project of someone else's that adds this one and links it: its sources keep their own warnings, and
# own_layer can be built by its name. Configures, compiles nothing.
# linked_by_others_test.sh CHECKOUT TORCH_FOLDER
set -euo pipefail

checkout=$1 torch=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(theirs LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(SLUICE_ENGINE ON)
set(SLUICE_CUDA OFF)
set(SLUICE_TORCH_DIR "$torch")
add_subdirectory("$checkout" sluice)
add_executable(theirs theirs.cpp)
target_link_libraries(theirs PRIVATE sluice_runtime)
END
echo 'int main() {}' >"$folder/theirs.cpp"
cmake -G Ninja -S "$folder" -B "$folder/build" >"$folder/log" 2>&1 || {
  cat "$folder/log"
  exit 1
}
command=$(grep '"command".*-c [^ ]*theirs.cpp' "$folder/build/compile_commands.json")
if [[ $command == *' -W'* ]]; then
  echo "FAILED: our warnings reach a program that links us: $command"
  exit 1
fi
cmake --build "$folder/build" --target help | grep -q '^own_layer:' || {
  echo "FAILED: there is no target own_layer without SLUICE_TESTS"
  exit 1
}
