// SPDX-License-Identifier: Apache-2.0
// The part that is the same for threads and processes.
#include "conformance/ranks/play.h"

#include <fmt/format.h>

#include "conformance/cases/phase.h"
#include "conformance/cases/phase_of_thread.h"
#include "conformance/runner/phase_record.h"

namespace dropless::conformance {

Verdict play_rank(const dropless_implementation& implementation, const Family& family,
                  const CaseId& id, const RunOptions& options, RankGroup& group) {
  const InGroup in_group(group);
  Verdict verdict = run_case(implementation, family, id, options);
  const std::string operation = operation_of_thread();
  if (!operation.empty() && verdict.status == Status::internal_error) {
    verdict.status = Status::crash;
    verdict.reason = fmt::format("{} threw an exception: {}", operation, verdict.reason);
  }
  announce_phase(departure_text(verdict));
  if (!operation.empty()) announce_phase("");  // the next case of this thread starts outside
  return verdict;
}

}  // namespace dropless::conformance
