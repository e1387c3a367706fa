// SPDX-License-Identifier: Apache-2.0
// The ranks of `run` and `gate`: of this machine, or joined to those that a launcher has started.
#pragma once

#include <functional>

#include "conformance/command_line/execution.h"

namespace dropless::conformance {

// Reads --ranks, --launcher and the variables of launchers, and fills request.group in. Rank 0, or
// the only process, then does the `work`; its exit code becomes that of all ranks. Any other rank
// follows rank 0 to the end. Throws UsageError, on every rank, and Interrupted.
void in_group(Session& session, Request& request, const std::function<void()>& work);

}  // namespace dropless::conformance
