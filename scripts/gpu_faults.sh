#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the suite on the GPU against every fault planted in its kernels (planted_fault.h). The tool
# must come from a tree configured with -DDROPLESS_CUDA_FAULTS=ON. Exit code 0 when the build is
# right without a fault and every fault is found.
#
#     scripts/gpu_faults.sh build-gpu-faults/dropless [smoke|standard [FAULT...]]
set -uo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
tool=${1:?usage: gpu_faults.sh TOOL [TIER [FAULT...]]}
tier=${2:-standard}
wanted=" ${*:3} " # all of them where none is named
failed=0
faults=$(sed -nE 's/^ *X\(([a-z0-9_]+), ([a-z_]+)\).*/\1 \2/p' "$root/optimized/cuda/planted_fault.h" |
  while read -r name stage; do
    [[ -z ${wanted// /} || $wanted == *" $name "* ]] && echo "$name $stage"
  done)
if [[ -z $faults ]]; then
  echo "no fault of that name; planted_fault.h has the list"
  exit 2
fi

# run FAULT STAGE: the exit code of the suite, 0 pass, 1 fail
run() {
  DROPLESS_CUDA_FAULT=$1 "$tool" run --implementation cuda --stage "$2" --tier "$tier" >"$log" 2>&1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for stage in $(cut -d ' ' -f 2 <<<"$faults" | sort -u); do
  run none "$stage"
  if (($? != 0)); then
    echo "without a fault: $stage fails"
    tail -n 5 "$log"
    exit 1
  fi
done
while read -r name stage; do
  began=$SECONDS
  run "$name" "$stage"
  code=$?
  clause=$(grep -oE '[A-Z_]+[0-9]*-[0-9]+[a-z]?' "$log" | head -n 1)
  if ((code == 1)); then
    echo "killed    $name ($stage, $((SECONDS - began)) s, first by ${clause:-?})"
  else
    echo "SURVIVED  $name ($stage, exit code $code)"
    failed=1
  fi
done <<<"$faults"
exit $failed
