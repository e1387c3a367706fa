// SPDX-License-Identifier: Apache-2.0
// Which cases a run consists of. Every wish narrows the choice; an empty choice is an error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/cases/family.h"

namespace dropless::conformance {

struct Wishes {
  std::vector<std::string> ids;      // case ids, or names of families (all of their cases)
  std::string batch;                 // file with one id or family per line, # for comments
  std::vector<std::string> filters;  // shell patterns on whole ids; one has to match
  std::vector<std::string> stages, models, clauses;  // one of each has to match
  Tier tier = Tier::standard;
  std::string shard;  // "i/n": the i-th of n parts, 1 <= i <= n
  // Not 0: collective cases of so many ranks and no others; naming another one is an error.
  int ranks = 0;

  bool operator==(const Wishes&) const = default;
};

nlohmann::ordered_json to_json(const Wishes& wishes);
Wishes wishes_from(const nlohmann::ordered_json& json);

// Families in the order of the registry, cases of a family in the order of its selection; ids that
// were named keep the order in which they were named. No case twice. Throws UsageError: something
// unknown (with what is known), or nothing left (with the wish that left nothing).
std::vector<CaseId> chosen_cases(const Registry& registry, const Wishes& wishes);

}  // namespace dropless::conformance
