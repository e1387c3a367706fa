// SPDX-License-Identifier: Apache-2.0
// The bijection between text and cases, as far as a program can check it.
#include "conformance/runner/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace dropless::conformance {

std::vector<const Family*> families_of(const Registry& registry, std::string_view clause) {
  std::vector<const Family*> found;
  for (const Family& family : registry.families()) {
    if (std::find(family.clauses.begin(), family.clauses.end(), clause) != family.clauses.end()) {
      found.push_back(&family);
    }
  }
  return found;
}

std::vector<std::string> gaps_in_coverage(const Registry& registry,
                                          const std::vector<Clause>& clauses) {
  std::vector<std::string> gaps;
  std::set<std::string> known, selected;
  for (const Clause& clause : clauses) {
    known.insert(clause.id);
    if (families_of(registry, clause.id).empty()) {
      gaps.push_back(fmt::format("clause {} ({}) has no case family", clause.id, clause.title));
    }
  }
  for (const CaseId& id : registry.cases(Tier::full)) selected.insert(id.family);
  for (const Family& family : registry.families()) {
    for (const std::string& clause : family.clauses) {
      if (!known.contains(clause)) {
        gaps.push_back(fmt::format("case family {} names clause {}, which no text defines",
                                   family.name, clause));
      }
    }
    if (!selected.contains(family.name)) {
      gaps.push_back(fmt::format("case family {} has no case in any tier", family.name));
    }
  }
  return gaps;
}

}  // namespace dropless::conformance
