#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One small case of every family under one check of compute-sanitizer. Exit code 77 with the reason
# where there is no GPU or no compute-sanitizer.
#
#     scripts/gpu_sanitizer.sh build-gpu/dropless memcheck|racecheck|initcheck|synccheck [I/N]
set -uo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
tool=${1:?usage: gpu_sanitizer.sh TOOL CHECK [SHARD]}
check=${2:?usage: gpu_sanitizer.sh TOOL CHECK [SHARD]}
shard=${3:-1/1} # only this part of the cases
if ! command -v compute-sanitizer >/dev/null; then
  echo "skipped: compute-sanitizer is not there"
  exit 77
fi
if ! said=$("$tool" info -i "${DROPLESS_IMPLEMENTATION:-cuda}" 2>&1) && [[ $said == *"cannot run here"* ]]; then
  echo "skipped: $said"
  exit 77
fi
# Kernels of cuBLASLt store by TMA and wait for copies through barriers, which initcheck takes for
# nothing written and racecheck for hazards: their work goes to our kernels then.
if [[ $check == racecheck || $check == initcheck ]]; then export DROPLESS_CUBLASLT=off; fi
# Every buffer its own allocation, so that an access between two of them is seen.
DROPLESS_DEVICE_ARENA=0 compute-sanitizer --tool "$check" --target-processes all --error-exitcode 9 \
  "$tool" run --batch "$root/scripts/gpu_sanitizer_cases.txt" --shard "$shard" -j 1 --timeout 120 \
  --no-results -i "${DROPLESS_IMPLEMENTATION:-cuda}"
