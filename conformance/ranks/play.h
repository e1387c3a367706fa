// SPDX-License-Identifier: Apache-2.0
// One rank of a collective case from its first call to its verdict, whatever carries the ranks.
#pragma once

#include "conformance/cases/case_run.h"
#include "conformance/ranks/rank_group.h"

namespace dropless::conformance {

// Runs the case as the rank that `group` says, and announces its departure with the verdict. An
// exception that came out of an operation is a crash of this rank. Never throws.
Verdict play_rank(const dropless_implementation& implementation, const Family& family,
                  const CaseId& id, const RunOptions& options, RankGroup& group);

}  // namespace dropless::conformance
