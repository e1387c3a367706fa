#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One small case of every family under one check of compute-sanitizer. Exit code 77 with the reason
# where there is no GPU or no compute-sanitizer.
#
#     scripts/gpu_sanitizer.sh build-gpu/dropless memcheck|racecheck|initcheck|synccheck
set -uo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
tool=${1:?usage: gpu_sanitizer.sh TOOL CHECK}
check=${2:?usage: gpu_sanitizer.sh TOOL CHECK}
if ! command -v compute-sanitizer >/dev/null; then
  echo "skipped: compute-sanitizer is not there"
  exit 77
fi
if ! said=$("$tool" info -i cuda 2>&1) && [[ $said == *"cannot run here"* ]]; then
  echo "skipped: $said"
  exit 77
fi
# Every buffer its own allocation, so that an access between two of them is seen.
DROPLESS_DEVICE_ARENA=0 compute-sanitizer --tool "$check" --target-processes all --error-exitcode 9 \
  "$tool" run --batch "$root/scripts/gpu_sanitizer_cases.txt" -j 1 --timeout 120 --no-results -i cuda
