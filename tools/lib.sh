# Shared by ./sluice, ./test and tools/: installs Debian packages, configures and builds.
# The caller sets `root` (the checkout) and runs under `set -euo pipefail`.
# Everything here reports on standard error; standard output belongs to the program.
# shellcheck shell=bash disable=SC2034,SC2154

build_packages=(g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev)
fuzz_packages=("${build_packages[@]}" clang libclang-rt-14-dev)
test_packages=("${fuzz_packages[@]}" libgtest-dev libbenchmark-dev clang-format)

readonly kExitUsage=2 kExitTemporary=75

say() { printf 'sluice: %s\n' "$*" >&2; }

# die CODE WORDS...
die() {
  local code=$1
  shift
  say "$@"
  exit "$code"
}

# logged LOG PATTERN COMMAND...: runs the command, appends all it prints to LOG and shows the lines
# that match PATTERN: in a terminal as one line that rewrites itself, elsewhere one by one.
logged() {
  local log=$1 pattern=$2
  shift 2
  "$@" </dev/null 2>&1 | tee -a "$log" | show_progress "$pattern"
}

show_progress() {
  local pattern=$1 line shown=
  while IFS= read -r line; do
    [[ $line =~ $pattern ]] || continue
    if [[ -t 2 ]]; then
      printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$line" >&2
      shown=1
    else
      printf '%s\n' "$line" >&2
    fi
  done
  [[ -z $shown ]] || printf '\r\033[K' >&2
}

# One build or installation at a time in this checkout. Children inherit the lock, so that a build
# whose parent was killed still keeps the next caller waiting.
take_lock() {
  mkdir -p "$root/build" 2>/dev/null || true
  [[ -w $root/build ]] ||
    die $kExitUsage "cannot write to $root/build: give yourself the right to, or clone anew"
  exec 9>>"$root/build/.lock"
  flock -n 9 && return
  say "waiting for another build in $root ..."
  flock 9
}

drop_lock() { exec 9>&-; }

# A rank knows itself by these; settings such as OMPI_MCA_* are also there without a launcher.
under_launcher() {
  [[ $'\n'$(compgen -e) =~ $'\n'(OMPI_COMM_|PMI_|PMIX_[^M]|MV2_COMM_|MPI_LOCAL|PALS_RANKID|SLURM_PROCID|SLURM_STEP) ]]
}

# missing_packages NAME...: those not installed, one a line. A system without dpkg is taken to have
# them all: what is not there will then be named by the build.
missing_packages() {
  command -v dpkg-query >/dev/null || return 0
  local name
  for name in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
  done
}

# require_packages NAME...: installs what is missing, or says what is missing and why it may not,
# and exits. Call it with the lock held.
require_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0

  local sudo=()
  ((EUID == 0)) || sudo=(sudo)
  local refusal=
  if [[ -n ${SLUICE_NO_INSTALL:-} ]]; then
    refusal="nothing is installed with --no-install"
  elif under_launcher; then
    refusal="nothing is installed under a launcher (mpirun, srun)"
  elif ((EUID != 0)) && ! may_sudo; then
    refusal="installing takes root or sudo"
  fi
  if [[ $refusal ]]; then
    say "missing Debian packages: ${missing[*]}"
    die $kExitUsage "$refusal; run: ${sudo[*]:+sudo }apt-get install --no-install-recommends ${missing[*]}"
  fi

  local log=$root/build/install.log
  : >"$log"
  say "installing ${missing[*]} (once; log: $log)"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600)
  local progress='^(Fetched|Setting up)'
  [[ ! -t 2 ]] || progress='^(Get:|Unpacking|Setting up)'
  # An installation that was cut short leaves packages half configured, and apt-get refuses to go on.
  # Neither this nor the update has to work in full: the installation itself decides.
  logged "$log" "$progress" "${sudo[@]}" dpkg --configure -a || true
  logged "$log" "$progress" "${apt[@]}" update || true
  logged "$log" "$progress" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" && return
  local cause
  cause=$(grep -m1 '^[EW]: Failed to fetch' "$log" || grep -m1 '^E:' "$log" || tail -n1 "$log")
  die $kExitTemporary "installing failed: ${cause#[EW]: }; check network and disk, then run it again (log: $log)"
}

may_sudo() {
  command -v sudo >/dev/null || return 1
  # Without a terminal there is nobody to type a password.
  if [[ -t 2 ]]; then sudo -v; else sudo -n true 2>/dev/null; fi
}

# build PRESET [TARGET...]: configures and builds into build/PRESET.
build() {
  local preset=$1 dir=$root/build/$1 log=$root/build/$1.log
  shift
  # CMake refuses a cache that was made elsewhere: the checkout has been moved or copied.
  if [[ -f $dir/CMakeCache.txt ]] &&
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt"; then
    rm -rf "$dir"
  fi
  say "building $preset (log: $log)"
  : >"$log"
  (
    cd "$root" &&
      logged "$log" '^-- (Configuring|Generating) done' cmake --preset "$preset" &&
      logged "$log" '^\[[0-9]+/[0-9]+\]' cmake --build "$dir" --target "${@:-all}"
  ) && return
  grep -vE '^(-- |\[[0-9]+/[0-9]+\] |Preset CMake variables:|  [A-Z_]+=|$)' "$log" >&2 || true
  if grep -q 'No space left on device' "$log"; then
    die $kExitTemporary "the disk is full: free some space, then run it again (log: $log)"
  fi
  die $kExitUsage "the build failed: the cause is above, all of it in $log"
}
