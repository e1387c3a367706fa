// SPDX-License-Identifier: Apache-2.0
// Which rank computes when ranks are threads of one process: they are named "rank 0", "rank 1", ...
#pragma once

#include <sys/types.h>

#include "conformance/runner/phase_record.h"

namespace dropless::conformance {

// Looks twice, a moment apart. Does nothing when the process has no such threads.
void note_busy_threads(pid_t pid, PhaseRecord& record);

// Of these shares of a processor by rank: who is busy where others are not. A wait may poll.
void note_busy_shares(const std::map<int, double>& shares, PhaseRecord& record);

}  // namespace dropless::conformance
