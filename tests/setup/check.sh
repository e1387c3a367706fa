#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries ./dropless.sh setup on invented machines: a PATH with only basic tools and with our own
# dpkg-query, apt-get and sudo, which record how they are called.
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/dropless.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
needed="libgtest-dev librapidcheck-dev libcli11-dev nlohmann-json3-dev libfmt-dev libopenblas-dev libbenchmark-dev"
failures=0

# A new machine that has the given Debian packages.
machine() {
  rm -rf "${work:?}/bin"
  mkdir "$work/bin"
  local tool
  for tool in bash env cat sed tr mktemp rm mkdir tail dirname readlink flock nproc awk grep id; do
    ln -s "$(command -v "$tool")" "$work/bin/$tool"
  done
  printf '%s\n' "$@" >"$work/installed"
  : >"$work/calls"
  chmod 666 "$work/calls" "$work/installed"
  # As the real one: lists what it knows and fails when it does not know one of them.
  write dpkg-query "status=0; for package; do
    [[ \$package == -* || \$package == *Status* ]] && continue; found=1
    while read -r one; do [[ \$one == \"\$package\" ]] && printf 'ii %s:amd64\n' \"\$one\" && found=0; done <$work/installed
    ((found == 0)) || status=1
  done; exit \$status"
  write apt-get "echo \"\$DEBIAN_FRONTEND apt-get \$*\" >>$work/calls
    [[ \$* == *install* ]] && for package; do echo \"\$package\" >>$work/installed; done; true"
}
write() { # a program of the machine
  printf '#!%s\n%s\n' "$work/bin/bash" "$2" >"$work/bin/$1"
  chmod 755 "$work/bin/$1"
}

# run STATUS [as USER]: runs the script and keeps its output and the recorded calls.
run() {
  local expected=$1 status=0
  local user=()
  [[ ${2:-} != user ]] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  output=$(cd / && "${user[@]}" "$(command -v env)" -i PATH="$work/bin" HOME="$work" TMPDIR=/tmp "$work/bin/bash" \
    "$script" setup 2>&1) || status=$?
  calls=$(<"$work/calls")
  [[ $status == "$expected" ]] || problem "exit status $status, expected $expected"
}
problem() {
  echo "FAILED $case: $1"
  echo "--- output: $output"
  echo "--- calls: $calls"
  failures=$((failures + 1))
}
says() { [[ $output == *"$1"* ]] || problem "the output does not say: $1"; }
called() { [[ $calls == *"$1"* ]] || problem "no such call: $1"; }
silent() { [[ -z $output && -z $calls ]] || problem "not silent"; }

everything="cmake ninja-build g++ ccache clang-format libopenmpi-dev openmpi-bin $needed"

case="all installed, and no apt-get at all"
# shellcheck disable=SC2086  # lists of words
machine $everything
rm "$work/bin/apt-get"
run 0
silent

case="tools that do not come from packages count"
# shellcheck disable=SC2086
machine $needed
for tool in cmake ninja g++ ccache clang-format mpicc mpirun; do write "$tool" "true"; done
run 0
silent

if ((EUID == 0)); then
  case="root installs exactly what is missing"
  # shellcheck disable=SC2086
  machine ${everything/libfmt-dev/}
  run 0
  called "noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update"
  called "install -y --no-install-recommends libfmt-dev"
  run 0
  [[ $(grep -c install "$work/calls") == 1 ]] || problem "installed twice"

  case="a failing update does not stop the installation, a failing installation does"
  # shellcheck disable=SC2086
  machine ${everything/libfmt-dev/}
  write apt-get "echo apt-get \"\$@\" >>$work/calls; echo 'no such source'; exit 100"
  run 1
  called "install"
  says "no such source"
  says "could not install libfmt-dev: run  sudo apt-get update && sudo apt-get install -y --no-install-recommends libfmt-dev"

  case="an optional package that cannot be installed is no error"
  # shellcheck disable=SC2086
  machine ${everything/ccache/}
  write apt-get "exit 100"
  run 0

  if command -v setpriv >/dev/null; then
    case="a user without sudo is told what to run, in one line"
    # shellcheck disable=SC2086
    machine ${everything/libfmt-dev/}
    run 1 user
    says "missing packages libfmt-dev"
    says "sudo apt-get install -y --no-install-recommends libfmt-dev"
    [[ $output != *$'\n'* ]] || problem "more than one line"
    [[ -z $calls ]] || problem "called apt-get"

    case="a user with sudo that wants a password is not asked for it"
    write sudo "echo sudo \"\$@\" >>$work/calls; exit 1"
    run 1 user
    says "missing packages libfmt-dev"

    case="a user with sudo without password"
    write sudo 'shift; "$@"'
    run 0 user
    called "noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends libfmt-dev"

    case="a user without sudo and without the optional packages"
    # shellcheck disable=SC2086
    machine cmake ninja-build g++ $needed
    run 0 user
    silent
  fi
fi

case="Debian without apt-get"
# shellcheck disable=SC2086
machine ${everything/libfmt-dev/}
rm "$work/bin/apt-get"
run 1
says "apt-get is missing; install these packages yourself: libfmt-dev"

case="neither Debian nor Ubuntu"
machine
rm "$work/bin/apt-get" "$work/bin/dpkg-query"
run 1
says "not Debian or Ubuntu"
says "cmake ninja-build g++ libgtest-dev"

case="no arguments"
output=$("$script") calls=
says "usage: ./dropless.sh COMMAND"

((failures == 0)) && echo "all machines set up as they should"
