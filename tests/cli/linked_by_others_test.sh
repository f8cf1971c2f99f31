#!/usr/bin/env bash
# A project of someone else's that adds this one as a folder and links it: its sources keep their own warnings
# and definitions, it installs nothing of ours, and own_layer can be built by its name. Configures, compiles nothing.
# linked_by_others_test.sh CHECKOUT [TORCH_FOLDER]: with TORCH_FOLDER, links the engine.
set -euo pipefail

checkout=$1 torch=${2:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(theirs LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(SLUICE_CUDA OFF)
if(NOT "$torch" STREQUAL "")
  set(SLUICE_ENGINE ON)
  set(SLUICE_TORCH_DIR "$torch")
  add_subdirectory("$checkout" sluice)
  set(sluice sluice::engine)
else()
  include(FetchContent)
  FetchContent_Declare(sluice SOURCE_DIR "$checkout")
  FetchContent_MakeAvailable(sluice)
  set(sluice sluice::sluice)
endif()
add_executable(theirs theirs.cpp)
target_link_libraries(theirs PRIVATE \${sluice})
END
echo 'int main() {}' >"$folder/theirs.cpp"
cmake -G Ninja -S "$folder" -B "$folder/build" >"$folder/log" 2>&1 || {
  cat "$folder/log"
  exit 1
}
command=$(grep '"command".*-c [^ ]*theirs.cpp' "$folder/build/compile_commands.json")
if [[ $command == *' -W'* || $command == *JSON_* ]]; then
  echo "FAILED: our warnings or definitions reach a program that links us: $command"
  exit 1
fi
cmake --install "$folder/build" --prefix "$folder/prefix" >/dev/null
if [[ -e $folder/prefix ]]; then
  echo "FAILED: their installation holds what is ours: $(find "$folder/prefix" | head -n 5)"
  exit 1
fi
if [[ $torch ]] && ! cmake --build "$folder/build" --target help | grep -q '^own_layer:'; then
  echo "FAILED: there is no target own_layer without SLUICE_TESTS"
  exit 1
fi
