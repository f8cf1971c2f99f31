#!/usr/bin/env bash
# installed_test.sh CHECKOUT BUILD [TORCH_FOLDER]: programs elsewhere find, link and run what is installed.
# Runs the commands of docs/library.md, except those that build Sluice itself and, without TORCH_FOLDER, those of
# the engine. BUILD is a build of CHECKOUT; with TORCH_FOLDER it has the engine.
set -euo pipefail

checkout=$1 build=$2 torch=${3:-}
HOME=$(mktemp -d)
trap 'rm -rf "$HOME"' EXIT
cd "$HOME"
cp -r "$checkout/examples" .
mkdir build
ln -s "$build" build/release
ln -s "$build" build/engine
export HOME SLUICE_TORCH_DIR=$torch
num_failed=0

fail() {
  echo "FAILED: $*"
  num_failed=$((num_failed + 1))
}

# One command a line; a block that names the engine's build is left out without torch.
documented_commands() {
  awk -v torch="$torch" '
    /^```/ { if (inside && (torch != "" || block !~ /build\/engine/)) printf "%s", block
             inside = $0 == "```sh"; block = ""; next }
    inside { block = block $0 "\n" }' "$checkout/docs/library.md" | grep -v -- --preset
}

while IFS= read -r command; do
  # What the programs print is compared below.
  bash -c "$command" >out 2>&1 || {
    cat out
    fail "$command"
    exit 1
  }
  [[ $command != own_* ]] || cp out "${command%%/*}.out"
done < <(documented_commands)
for program in own_program ${torch:+own_layer}; do
  [[ -s $program.out ]] || fail "docs/library.md does not run $program"
done

# What the library answers is what the program answers.
sluice=$HOME/sluice/bin/sluice
{
  "$sluice" schedule zb-v --devices 4 --microbatches 8
  "$sluice" train examples/quickstart.toml --dry-run
} >answers
makespan=$("$sluice" schedule zb-v -d 4 -m 8 --format json | sed -nE 's/^ *"makespan": ([0-9.]+),$/\1/p')
grep -qx "makespan $makespan, peak 8 stage-activations" own_program.out || fail "no makespan $makespan in own_program"
grep -v '^makespan ' own_program.out | grep -vxF -f answers && fail "own_program prints what sluice does not"
(($(wc -l <own_program.out) > 15)) || fail "own_program prints too little: $(<own_program.out)"
if [[ $torch ]]; then
  "$build/examples/own_layer/own_layer" | diff - own_layer.out || fail "own_layer trains otherwise than in the tree"
  "$HOME/sluice/bin/sluice-engine" --version >/dev/null || fail "sluice-engine does not start"
fi

# The package can be moved: it names no folder of this machine.
if grep -rF -e "$checkout" -e "$build" ${torch:+-e "$torch"} sluice/lib*/cmake; then
  fail "the package names folders of this machine"
fi
[[ ! -e sluice/include/sluice/cli ]] || fail "headers of the command line are installed"
[[ $torch || ! -e sluice/include/sluice/runtime ]] || fail "headers of the engine are installed without it"

# Every header of the pure side compiles by itself, and how Sluice uses its JSON library is its own affair.
mkdir theirs
{
  (cd sluice/include && find sluice -name '*.h' | grep -vE 'sluice/(comm|cuda|data|model|optim|runtime)/' | sort) |
    sed 's/.*/#include "&"/'
  echo 'enum Colour { red };'
  echo 'nlohmann::json theirs() { return red; }'
} >theirs/theirs.cpp
cat >theirs/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(theirs LANGUAGES CXX)
find_package(sluice ${asked})
find_package(sluice ${asked})  # as two parts of a project may
add_library(theirs OBJECT theirs.cpp)
target_link_libraries(theirs PRIVATE sluice::sluice nlohmann_json::nlohmann_json)
END
theirs() { cmake -G Ninja -S theirs -B "theirs/$1" -DCMAKE_PREFIX_PATH="$HOME/sluice" "-Dasked=$2" >out 2>&1; }
if ! theirs any REQUIRED || ! cmake --build theirs/any >out 2>&1; then
  cat out
  fail "a program that includes every header does not compile"
fi

for optional in motor engine; do
  theirs "optional-$optional" "REQUIRED;OPTIONAL_COMPONENTS;$optional" ||
    fail "an optional component that is missing is refused: $(<out)"
done

# refused ASKED TEXT: find_package says TEXT.
refused() {
  theirs refused "$1" && fail "find_package(sluice ${1//;/ }) is not refused"
  tr -s ' \n' ' ' <out | grep -qF -- "$2" || fail "find_package(sluice ${1//;/ }): expected '$2', got $(<out)"
}
refused '0.2;REQUIRED' 'compatible with requested version "0.2"'
refused 'REQUIRED;COMPONENTS;motor' "there is no component 'motor': the only one is engine"
if [[ $torch ]]; then
  refused 'REQUIRED;COMPONENTS;engine' "SLUICE_TORCH_DIR is '': name the folder"
  mkdir -p old/torch
  ln -s "$torch"/torch/{include,lib} old/torch
  echo "__version__ = '2.1.0'" >old/torch/version.py
  sed -i "s|^find_package|set(SLUICE_TORCH_DIR \"$HOME/old\")\n&|" theirs/CMakeLists.txt
  refused 'REQUIRED;COMPONENTS;engine' 'Found unsuitable version "2.1.0", but required is exact version'
else
  refused 'REQUIRED;COMPONENTS;engine' \
    'component engine was not installed: install sluice from a build with SLUICE_ENGINE=ON and SLUICE_TORCH_DIR'
fi

((num_failed == 0))
