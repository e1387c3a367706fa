// SPDX-License-Identifier: Apache-2.0
// A collective case in one process: every rank is a thread.
#pragma once

#include <vector>

#include "conformance/cases/case_run.h"

namespace dropless::conformance {

// One verdict for the collective. Never throws.
Verdict run_case_over_threads(const dropless_implementation& implementation, const Family& family,
                              const CaseId& id, const RunOptions& options = {});

// The verdicts of the ranks 0, 1, ... as one: the gravest status with its rank, failures in the
// order of the ranks, checks added up. Empty: internal_error.
Verdict merged(const std::vector<Verdict>& by_rank);

}  // namespace dropless::conformance
