// SPDX-License-Identifier: Apache-2.0
// Over threads, or not.
#include "conformance/ranks/in_process.h"

#include "conformance/ranks/rank_group.h"
#include "conformance/ranks/thread_ranks.h"

namespace dropless::conformance {

Verdict run_in_process(const dropless_implementation& implementation, const Family& family,
                       const CaseId& id, const RunOptions& options) {
  return is_collective(family) ? run_case_over_threads(implementation, family, id, options)
                               : run_case(implementation, family, id, options);
}

}  // namespace dropless::conformance
