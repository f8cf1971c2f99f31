# Shared by ./sluice, ./test and tools/: installs Debian packages and torch, configures and builds.
# The caller sets `root` (the checkout) and runs under `set -euo pipefail`.
# Everything here reports on standard error; standard output belongs to the program.
# shellcheck shell=bash disable=SC2034,SC2154

build_packages=(g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libssl-dev)
engine_packages=("${build_packages[@]}" libopenmpi-dev openmpi-bin python3 python3-pip)
fuzz_packages=("${build_packages[@]}" clang libclang-rt-14-dev)
test_packages=("${engine_packages[@]}" clang libclang-rt-14-dev clang-format libgtest-dev libbenchmark-dev bible-kjv
  coinor-libcbc-dev)

readonly kTorch=2.11.0

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

# take_lock NAME WHAT: one process at a time holds a lock of this checkout: of each preset's build, and
# of installing. Children inherit the lock, so that a build whose parent was killed still keeps the next
# caller waiting. A caller holds one lock at a time.
take_lock() {
  make_build_folder
  exec 9>>"$root/build/.lock-$1"
  flock -n 9 && return
  say "waiting for another $2 in $root ..."
  flock 9
}

drop_lock() { exec 9>&-; }

make_build_folder() {
  mkdir -p "$root/build" 2>/dev/null || true
  [[ -w $root/build ]] ||
    die $kExitUsage "cannot write to $root/build: give yourself the right to, or clone anew"
}

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

# Why nothing may be installed; prints nothing where it may.
refusal() {
  if [[ -n ${SLUICE_NO_INSTALL:-} ]]; then
    echo "nothing is installed with --no-install"
  elif under_launcher; then
    echo "nothing is installed under a launcher (mpirun, srun)"
  fi
}

# require_packages NAME...: installs what is missing, or says what is missing and why it may not,
# and exits. Call it without a lock.
require_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  take_lock install installation
  mapfile -t missing < <(missing_packages "$@") # another may have installed them meanwhile
  ((${#missing[@]})) && install_packages "${missing[@]}"
  drop_lock
}

# install_packages NAME...: REQUIRES: the lock of installing.
install_packages() {
  local missing=("$@")
  local sudo=() refusal
  ((EUID == 0)) || sudo=(sudo)
  refusal=$(refusal)
  [[ $refusal ]] || ((EUID == 0)) || may_sudo || refusal="installing takes root or sudo"
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

# Whether this machine can run what it builds for a GPU: its driver lists one, and there is nvcc where
# CMake finds it.
has_gpu() {
  [[ ${CUDACXX:-} || -x /usr/local/cuda/bin/nvcc ]] || command -v nvcc >/dev/null || return 1
  [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]
}

# Which torch is looked for and, once per user and not per checkout, fetched. On the CPU it needs no
# more of CUDA than two libraries, on a GPU all that its wheel asks for.
choose_torch() {
  torch_cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/sluice/torch-$kTorch
  if has_gpu; then
    torch_name="torch $kTorch with CUDA" torch_size="4.7 GB" torch_cache+=-cuda suits=holds_cuda
    torch_wheels=("torch==$kTorch")
  else
    torch_name="torch $kTorch" torch_size="1.2 GB" suits=holds_torch
    torch_wheels=(--no-deps "torch==$kTorch" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
  fi
}

# require_engine NAME...: require_packages, and the same for torch. Leaves the folder that holds torch
# in SLUICE_TORCH_DIR, where CMake looks for it. Call it without a lock.
require_engine() {
  local refusal
  refusal=$(refusal)
  choose_torch
  if [[ $refusal ]] && ! find_torch; then
    say "missing $torch_name: $refusal; run '$root/sluice train --build' once by itself (about" \
      "$torch_size go to $torch_cache), or set SLUICE_TORCH_DIR to the folder that holds torch"
    require_packages "$@"
    exit $kExitUsage
  fi
  require_packages "$@"
  find_torch || install_torch
}

# Looks for torch where the user says, in python3, in our cache. Does not import it: that takes seconds.
find_torch() {
  if [[ ${SLUICE_TORCH_DIR:-} ]]; then
    holds_torch "$SLUICE_TORCH_DIR" ||
      die $kExitUsage "SLUICE_TORCH_DIR is $SLUICE_TORCH_DIR: no torch/lib/libtorch_cpu.so and its" \
        "headers in there; unset it to use torch $kTorch"
    SLUICE_TORCH_DIR=$(readlink -f "$SLUICE_TORCH_DIR")
    return
  fi
  local dir
  # From /, so that nothing in the user's folder passes for a package.
  dir=$(cd / && python3 -c 'from importlib.metadata import distribution
torch = distribution("torch")
print(torch.locate_file("") if torch.version.startswith("'"${kTorch%.*}"'.") else "")' 2>/dev/null) || dir=
  for dir in "$dir" "$torch_cache"; do
    if $suits "$dir"; then
      export SLUICE_TORCH_DIR=$dir
      return
    fi
  done
  return 1
}

holds_torch() { [[ -f $1/torch/include/ATen/ATen.h && -f $1/torch/lib/libtorch_cpu.so ]]; }

# Also what its GPU half needs; that half itself is in the one for the CPU, too.
holds_cuda() {
  local part found
  holds_torch "$1" && [[ -f $1/torch/lib/libtorch_cuda.so ]] || return 1
  for part in cudnn/lib/libcudnn cu13/lib/libcudart cu13/lib/libcublas; do
    found=("$1/nvidia/$part".so.*)
    [[ -f ${found[0]} ]] || return 1
  done
}

# Fetches torch into our cache: into a folder beside it first, so that what is there is whole.
install_torch() {
  local log=$root/build/torch.log part=$torch_cache.part
  local folder=${torch_cache%/*}
  mkdir -p "$folder" 2>/dev/null || true
  [[ -w $folder ]] ||
    die $kExitUsage "cannot write to $folder: set XDG_CACHE_HOME to a folder where you can"
  exec 8>>"$folder/.lock"
  if ! flock -n 8; then
    say "waiting for another installation of torch in $folder ..."
    flock 8
  fi
  if ! find_torch; then
    make_build_folder
    say "installing $torch_name into $torch_cache (once; about $torch_size; log: $log)"
    rm -rf "$part" "$torch_cache"
    mkdir -p "$part/tmp"
    : >"$log"
    if ! logged "$log" '^(torch:|Successfully)' fetch_torch "$part"; then
      local cause
      cause=$(grep '^ERROR:' "$log" | tail -n1 || tail -n1 "$log")
      rm -rf "$part"
      die $kExitTemporary "installing torch failed: ${cause#ERROR: }; check network and disk, then" \
        "run it again (log: $log)"
    fi
    rm -rf "$part/tmp"
    mv -T "$part" "$torch_cache"
    find_torch || die $kExitTemporary "no torch in $torch_cache: see $log"
  fi
  exec 8>&-
}

# fetch_torch FOLDER: pip, and from time to time how much has come.
fetch_torch() {
  local python watcher status=0
  # The python3 of a virtual environment may be without pip; Debian's has it.
  for python in python3 /usr/bin/python3; do
    ! "$python" -m pip --version >/dev/null 2>&1 || break
  done
  (
    exec 8>&- 9>&-
    while sleep 3 >/dev/null 2>&1; do echo "torch: $(du -sm "$1" 2>/dev/null | cut -f1) MB"; done
  ) &
  watcher=$!
  # Its own temporary folder: /tmp may be too small, and from there the files would be copied.
  TMPDIR=$1/tmp PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip install --target "$1" \
    --only-binary :all: --no-cache-dir --no-compile --root-user-action ignore --progress-bar off \
    --disable-pip-version-check "${torch_wheels[@]}" || status=$?
  kill "$watcher"
  return $status
}

# build PRESET [TARGET...]: configures and builds into build/PRESET. Call it without a lock.
build() {
  take_lock "$1" "build of $1"
  build_locked "$@"
  drop_lock
}

# The same. REQUIRES: the lock of the preset.
build_locked() {
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
