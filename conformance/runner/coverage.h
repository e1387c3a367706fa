// SPDX-License-Identifier: Apache-2.0
// Clauses and case families must know each other, or the build fails.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/family.h"
#include "conformance/clauses/clauses.h"

namespace dropless::conformance {

// One sentence per clause that no family can find broken, per clause of a family that does not
// exist, and per family that selects no case in any tier. Empty: complete.
std::vector<std::string> gaps_in_coverage(const Registry& registry,
                                          const std::vector<Clause>& clauses);

// Families whose failures can name this clause.
std::vector<const Family*> families_of(const Registry& registry, std::string_view clause);

}  // namespace dropless::conformance
