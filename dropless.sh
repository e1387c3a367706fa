#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The only set-up: installs what is missing, builds, and hands its arguments to the dropless tool.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
build=${DROPLESS_BUILD:-$root/build}
preset=${DROPLESS_PRESET:-default}

# package=command that also satisfies it (a cmake of its own, say); package alone: Debian's only.
required=("cmake=cmake" "ninja-build=ninja" "g++=g++" libgtest-dev librapidcheck-dev libcli11-dev
  nlohmann-json3-dev libfmt-dev libopenblas-dev libbenchmark-dev)
# Faster builds, the format check, ranks over MPI.
optional=("ccache=ccache" "clang-format=clang-format" "libopenmpi-dev=mpicc" "openmpi-bin=mpirun")

usage() {
  cat <<'TEXT'
usage: ./dropless.sh COMMAND [ARGUMENT...]

  gate            the main job: one go/no-go verdict over everything
  test [CTEST-ARGUMENT...]   build everything and run all tests with ctest
  setup           only install missing packages
  anything else   goes to the dropless tool: run, list, explain, ... (./dropless.sh --help)

The first call installs missing Debian or Ubuntu packages (as root, or by sudo without a password)
and builds into build/; later calls only build what changed.

  DROPLESS_BUILD=folder    builds there
  DROPLESS_PRESET=name     configures by that preset of CMakePresets.json (cpu, cuda, ...)
  DROPLESS_JOBS=n          parallel compilations and tests (default: all cores)
TEXT
}

say() { echo "dropless: $*" >&2; }
fail() {
  say "$*"
  exit 1
}

# Prints those of the given packages that are neither installed nor replaced by their command.
missing_packages() {
  local entry installed=" "
  if command -v dpkg-query >/dev/null; then
    # It fails when one of the packages is unknown, and lists the others all the same.
    installed=$(dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}\n' "${@%%=*}" 2>/dev/null || true)
    installed=" $(sed -n 's/^ii *//p' <<<"$installed" | sed 's/:.*//' | tr '\n' ' ') "
  fi
  for entry in "$@"; do
    [[ $installed == *" ${entry%%=*} "* ]] && continue
    [[ $entry == *=* ]] && command -v "${entry#*=}" >/dev/null && continue
    printf '%s ' "${entry%%=*}"
  done
}

install_packages() {
  local manual as_root=()
  local -a needed wanted
  # An assignment, unlike a process substitution, stops the script when the check itself fails.
  local needed_list wanted_list
  needed_list=$(missing_packages "${required[@]}")
  wanted_list=$(missing_packages "${required[@]}" "${optional[@]}")
  [[ -n $wanted_list ]] || return 0
  read -ra needed <<<"$needed_list"
  read -ra wanted <<<"$wanted_list"
  if ! command -v apt-get >/dev/null; then
    # Other distributions name their packages differently; CMake says what it does not find.
    if command -v dpkg-query >/dev/null; then
      ((${#needed[@]} == 0)) || fail "apt-get is missing; install these packages yourself: ${needed[*]}"
    elif ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
      fail "not Debian or Ubuntu: install what these packages contain yourself: ${needed[*]}"
    fi
    return 0
  fi
  manual="sudo apt-get update && sudo apt-get install -y --no-install-recommends ${wanted[*]}"
  if ((EUID != 0)); then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    elif ((${#needed[@]} == 0)); then
      return 0
    else
      fail "missing packages ${needed[*]}, and neither root nor sudo without a password: run  $manual"
    fi
  fi
  say "installing ${wanted[*]}"
  local log
  log=$(mktemp)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  # A broken third-party source must not stop packages that the other sources have.
  "${apt[@]}" update </dev/null >"$log" 2>&1 || true
  if ! "${apt[@]}" install -y --no-install-recommends "${wanted[@]}" </dev/null >>"$log" 2>&1; then
    read -ra needed <<<"$(missing_packages "${required[@]}")"
    if ((${#needed[@]})); then
      tail -n 15 "$log" >&2
      rm -f "$log"
      fail "could not install ${needed[*]}: run  $manual"
    fi
  fi
  rm -f "$log"
}

# Shows the newest line of a long job on a terminal, nothing in a pipe.
progress() {
  if [[ ! -t 2 ]]; then
    cat >/dev/null
    return
  fi
  local line columns
  columns=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    [[ $line == \[* || $line == --* ]] && printf '\r\033[K%s' "${line:0:columns-1}" >&2
  done
  printf '\r\033[K' >&2
}

# Runs a command; its output goes to a log and is printed when it fails.
quietly() {
  local log=$build/dropless.log
  if ! "$@" </dev/null 2>&1 | tee "$log" | progress; then
    tail -n 200 "$log" >&2
    fail "failed: $* (all of its output: $log)"
  fi
}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null || true; }

# Configures when there is no finished configuration of this tree, folder and preset.
configure() {
  local stamp=$build/dropless.configured key
  key="$root $build $preset $(cksum <"$root/CMakePresets.json")"
  [[ -f $build/build.ninja && -f $stamp && $(<"$stamp") == "$key" ]] && return 0
  local fresh=()
  if [[ -f $build/CMakeCache.txt ]]; then
    [[ $(cached CMAKE_HOME_DIRECTORY) == "$root" && $(cached CMAKE_CACHEFILE_DIR) == "$build" && -f $stamp ]] ||
      fresh=(--fresh)
  fi
  say "configuring into $build"
  rm -f "$stamp"
  (cd "$root" && quietly cmake "${fresh[@]}" --preset "$preset" -B "$build" -G Ninja)
  sed -n '/^-- dropless /,/^--/{/^-- [^d]/!p}' "$build/dropless.log" >&2
  echo "$key" >"$stamp"
}

# Cores, but no more than memory allows: a heavy C++ file takes more than a gigabyte.
parallel() {
  if [[ -n ${DROPLESS_JOBS:-} ]]; then
    echo "$DROPLESS_JOBS"
    return
  fi
  local cores gigabytes
  cores=$(nproc)
  gigabytes=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || echo "$cores")
  ((gigabytes < cores)) && cores=$gigabytes
  echo $((cores < 1 ? 1 : cores))
}

# One at a time: installs, configures and builds the given target.
prepare() {
  mkdir -p "$build" || fail "cannot write $build; set DROPLESS_BUILD to a folder of yours"
  build=$(cd "$build" && pwd)
  exec 9>"$build/dropless.lock"
  if ! flock -n 9; then
    say "waiting for another dropless.sh that builds in $build"
    flock 9
  fi
  install_packages
  configure
  NINJA_STATUS='[%f/%t] ' quietly ninja -C "$build" -j "$(parallel)" "$1"
  exec 9>&-
}

case ${1:-} in
  "" | help | -h)
    usage
    ;;
  setup)
    install_packages
    ;;
  test)
    shift
    prepare all
    exec ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$(parallel)" "$@"
    ;;
  *)
    prepare dropless
    exec "$build/dropless" "$@"
    ;;
esac
