// SPDX-License-Identifier: Apache-2.0
// Any case in this process: a collective one over threads, any other one as it is.
#pragma once

#include "conformance/cases/case_run.h"

namespace dropless::conformance {

// Never throws.
Verdict run_in_process(const dropless_implementation& implementation, const Family& family,
                       const CaseId& id, const RunOptions& options = {});

}  // namespace dropless::conformance
