// SPDX-License-Identifier: Apache-2.0
// What a campaign over the planted faults found, and its JSON form. Campaigns over parts (one stage
// each, say) can be written to files and put together again.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/runner/fault_hunt.h"

namespace dropless::conformance {

// How far each hunt went.
enum class Depth {
  first_kill,   // until a case failed
  alone,        // first-named clause only
  two_clauses,  // until a second clause saw the fault
  every_case
};
std::string_view name(Depth depth);

struct FaultResults {
  std::vector<FaultEntry> faults;  // those that were asked for, also what no CPU shows
  std::vector<Hunt> hunts;         // of those that one does
  std::vector<Tier> tiers;
  Depth depth = Depth::first_kill;
  std::string commit;
};

nlohmann::ordered_json to_json(const FaultResults& results);

// All of these files as one campaign, faults in the order of the catalogue. Throws UsageError: a
// file is not of this form, they differ in commit, tiers or depth, a fault occurs twice, or the
// catalogue holds no fault of that name.
FaultResults read_fault_results(const std::vector<std::string>& files);

}  // namespace dropless::conformance
