// SPDX-License-Identifier: Apache-2.0
// The kill score in words and tables.
#pragma once

#include <string>
#include <vector>

#include "conformance/runner/fault_hunt.h"

namespace dropless::conformance {

// One fault, in one line: killed or survived, tier, clause, cases, time.
std::string hunt_line(const Hunt& hunt);
// Where the fault comes from and, when it was killed, the case that did it.
std::string hunt_explanation(const Hunt& hunt);
// Per stage: faults, killed in each tier, survivors, and those that need a GPU or several ranks.
std::string score_table(const std::vector<Hunt>& hunts, const std::vector<FaultEntry>& faults,
                        const std::vector<Tier>& tiers);
// Per clause: faults that it sees, and those that it alone sees (after --every-case or --clauses;
// the latter stops a hunt when two clauses have seen the fault).
std::string clause_table(const std::vector<Hunt>& hunts);
std::string last_line(const std::vector<Hunt>& hunts);
std::string fault_list(const std::vector<FaultEntry>& faults);

}  // namespace dropless::conformance
