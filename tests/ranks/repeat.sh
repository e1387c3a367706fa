#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants the five deadlocks again and again: repeat.sh BUILD_FOLDER [TIMES] [WAY]. WAY is processes,
# threads, mpi, joined_by_address, joined_by_file or under_mpirun. DROPLESS_TEST_TIMEOUT sets the
# seconds that a stuck case may take (2). Every round looks for processes and files left behind.
set -euo pipefail
build=${1:?"usage: repeat.sh BUILD_FOLDER [TIMES] [WAY]"}
times=${2:-100}
way=${3:-processes}
program=$build/tests/ranks/rank_runner_test
[[ -x $program ]] || { echo "$program is not there; build the target rank_runner_test" >&2; exit 2; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begin=$SECONDS
export DROPLESS_TEST_TIMEOUT=${DROPLESS_TEST_TIMEOUT:-2}
"$program" --gtest_filter="Ranks/Ways.FiveKindsOfDeadlock*/$way" --gtest_repeat="$times" \
  --gtest_fail_fast >"$log" 2>&1 || true
good=$(grep -c '^\[  PASSED  \] 1 test' "$log" || true)
echo "$way: $good of $times rounds, $((SECONDS - begin)) s"
((good == times)) || { grep -v '^\[' "$log" | head -n 60; exit 1; }
