#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# House rules that a program can check: check.sh RULE. Prints each offence and fails when there is
# one, or when there was nothing to look at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Files of the project: what git tracks, or everything outside build folders in an unpacked archive.
files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -- "$@"
  else
    find . -path './build*' -prune -o -path './.*' -prune -o -type f -print | sed 's,^\./,,' |
      while read -r file; do
        for pattern in "$@"; do
          # shellcheck disable=SC2053  # the right side is a pattern
          if [[ $file == $pattern ]]; then
            echo "$file"
            break
          fi
        done
      done
  fi | while read -r file; do
    if [[ -f $file ]]; then echo "$file"; fi # deleted, but not yet committed
  done
}

mapfile -t code < <(files '*.h' '*.c' '*.cpp' '*.cu' '*.cuh')
mapfile -t text < <(files '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' '*.inc' '*.cmake' '*CMakeLists.txt' '*.sh' \
  '*.py' '*.md' '*.json' '.ci/run')
((${#code[@]} > 0)) || { echo "no source file found"; exit 1; }

offences=0
report() {
  echo "$*"
  offences=$((offences + 1))
}
# Every line that a pattern matches in the given files is an offence.
forbid() {
  local reason=$1 pattern=$2 line
  shift 2
  (($#)) || return 0
  while IFS= read -r line; do report "$line   <- $reason"; done < <(grep -nHP -- "$pattern" "$@" || true)
}
in_folder() { printf '%s\n' "${code[@]}" | grep "^$1/" || true; }

case ${1:-} in
  length) # none above 600 lines, and half of them below 150
    lengths=()
    for file in "${code[@]}"; do
      lines=$(wc -l <"$file")
      lengths+=("$lines")
      ((lines <= 600)) || report "$file has $lines lines; at most 600"
    done
    median=$(printf '%s\n' "${lengths[@]}" | sort -n | sed -n "$((${#lengths[@]} / 2 + 1))p")
    echo "${#lengths[@]} source files, median $median lines"
    ((median < 150)) || report "the median source file has $median lines; below 150"
    ;;
  words) # what is committed is finished, and knows no machine it was written on
    words='\b(T[O]DO|F[I]XME|X[X]X)\b|(?i:\bst[u]b(s|bed)?\b|\bplace[h]older|\bnot [i]mplemented\b)'
    forbid "unfinished" "$words" "${text[@]}"
    forbid "a path of one machine" '/w[o]rk/(main|shared)|/tmp/[b]uild-|/home/\w' "${text[@]}"
    ;;
  licence) # every source file says its licence in its first three lines
    for file in "${code[@]}"; do
      head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || report "$file has no SPDX line"
    done
    ;;
  dependencies) # contract <- {reference, optimized, tolerances} <- conformance <- {fuzz, tests}
    include='^\s*#\s*include\s*[<"]'
    mapfile -t contract < <(in_folder include)
    mapfile -t reference < <(in_folder reference)
    mapfile -t optimized < <(in_folder optimized)
    mapfile -t tolerances < <(in_folder tolerances)
    mapfile -t conformance < <(in_folder conformance)
    above='(conformance|fuzz|tests)/'
    forbid "the contract depends on nothing" "$include(reference|optimized|tolerances)/|$include$above" "${contract[@]}"
    forbid "the oracle shares no code with what it judges" "$include(optimized|tolerances)/|$include$above" "${reference[@]}"
    forbid "what is judged shares no code with the oracle" "$include(reference|tolerances)/|$include$above" "${optimized[@]}"
    forbid "dependencies point down" "$include(reference|optimized)/|$include$above" "${tolerances[@]}"
    forbid "dependencies point down" "$include(fuzz|tests)/" "${conformance[@]}"
    forbid "the reference needs the standard library only" \
      "$include(nlohmann|fmt|CLI|cblas|gtest|rapidcheck|omp|immintrin)" "${reference[@]}"
    ;;
  *)
    echo "usage: check.sh length|words|licence|dependencies"
    exit 2
    ;;
esac
((offences == 0)) || { echo "$offences offences"; exit 1; }
