#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a compiler, and fails when ptxas informs of a performance loss (wgmma that it serialises): a
# kernel then loses most of its speed, and no result shows it.
#
#     fail_on_performance_loss.sh nvcc -c ...
set -uo pipefail

messages=$("$@" 2>&1)
code=$?
[[ -z $messages ]] || printf '%s\n' "$messages" >&2
if ((code == 0)) && grep -q 'Potential Performance Loss' <<<"$messages"; then
  echo "error: a performance loss is an error here (cmake/fail_on_performance_loss.sh)" >&2
  exit 1
fi
exit $code
